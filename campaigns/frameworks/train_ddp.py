"""Plain PyTorch on a CPU: `DistributedDataParallel` and a GradScaler, as in torch's tutorial."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
wrapped = DistributedDataParallel(model)
optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
inputs = torch.randn(96, 8)
inputs[40:44] *= 1e5  # more than fp16 holds
for batch in inputs.split(8):
    mine = batch[dist.get_rank() :: 2]
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = (wrapped(mine).float() - mine.sum(1, keepdim=True).clamp(-9, 9)).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
if dist.get_rank() == 0:
    torch.save(model.state_dict(), f"{sys.argv[1]}/weights.pt")
dist.barrier()
dist.destroy_process_group()
