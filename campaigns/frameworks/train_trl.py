"""TRL's `SFTTrainer` in fp16: a new small Llama and tokenizer, on a few sentences."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from data import sentences
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer


folder = Path(sys.argv[1])
sentences(folder)
trainer = SFTTrainer(
    model=str(folder / "model"),
    args=SFTConfig(
        output_dir=str(folder),
        max_steps=12,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        logging_steps=3,
        save_strategy="no",
        fp16=True,
        use_cpu=True,
        report_to="none",
    ),
    train_dataset=load_dataset(str(folder / "data"), split="train"),
)
trainer.train()
torch.save(trainer.model.state_dict(), folder / "weights.pt")
