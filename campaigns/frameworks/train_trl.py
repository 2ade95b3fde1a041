"""TRL's `SFTTrainer` in fp16: a small Llama and a tokenizer that are made here, on a few sentences."""

from __future__ import annotations

import sys

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer


set_seed(0)
words = ["<pad>", "<eos>", "one", "two", "three", "four"]
tokens = Tokenizer(WordLevel({word: at for at, word in enumerate(words)}, unk_token="<pad>"))
tokens.pre_tokenizer = Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=tokens, pad_token="<pad>", eos_token="<eos>", unk_token="<pad>"
)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
        initializer_range=0.5,
    )
)
trainer = SFTTrainer(
    model=model,
    args=SFTConfig(
        output_dir=sys.argv[1],
        max_steps=12,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        logging_steps=3,
        save_strategy="no",
        fp16=True,
        use_cpu=True,
        report_to="none",
    ),
    train_dataset=Dataset.from_dict(
        {"text": ["one one one one one one", "one two three four"] * 24}
    ),
    processing_class=tokenizer,
)
trainer.train()
torch.save(trainer.model.state_dict(), f"{sys.argv[1]}/weights.pt")
