"""Hugging Face `Trainer` as in its quick tour: a small BERT, random tokens, fp16."""

from __future__ import annotations

import sys

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)


class Sentences(Dataset):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(0, 100, (64, 12), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = self.tokens[index]
        return {"input_ids": tokens, "labels": tokens.sum() / 50.0}


set_seed(0)
config = BertConfig(
    vocab_size=100,
    num_labels=1,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
)
arguments = TrainingArguments(
    output_dir=sys.argv[1],
    max_steps=12,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    logging_steps=3,
    save_steps=6,
    learning_rate=5e-4,
    fp16=True,
    use_cpu=not torch.cuda.is_available(),
    report_to="none",
)
trainer = Trainer(
    model=BertForSequenceClassification(config), args=arguments, train_dataset=Sentences()
)
trainer.train()
torch.save(trainer.model.state_dict(), f"{sys.argv[1]}/weights.pt")
