"""Accelerate as in its quick tour: a loop with `prepare`, `accumulate`, `backward` and clipping."""

from __future__ import annotations

import json
import sys

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


torch.manual_seed(0)
accelerator = Accelerator(
    mixed_precision="fp16", gradient_accumulation_steps=2, cpu=not torch.cuda.is_available()
)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
inputs = torch.randn(96, 8)
inputs[40:44] *= 1e5  # more than fp16 holds
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True).clamp(-9, 9)), batch_size=4)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
skipped = []
for _ in range(2):
    for batch, target in loader:
        with accelerator.accumulate(model):
            with accelerator.autocast():
                loss = (model(batch).float() - target).square().mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            if accelerator.sync_gradients:
                skipped.append(optimizer.step_was_skipped)
            optimizer.zero_grad()
if accelerator.is_main_process:
    torch.save(accelerator.unwrap_model(model).state_dict(), f"{sys.argv[1]}/weights.pt")
    with open(f"{sys.argv[1]}/skipped.json", "w") as file:
        json.dump(skipped, file)
accelerator.end_training()
