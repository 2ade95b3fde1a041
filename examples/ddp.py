"""DistributedDataParallel: gradients are averaged in the backward pass, so every rank skips the same updates.

Start it with `torchrun --nproc-per-node=2 examples/ddp.py`. Plain `python` also starts torchrun.
"""

import os
import sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import ampmon


if "RANK" not in os.environ:
    from torch.distributed.run import main

    sys.exit(main(["--standalone", "--nproc-per-node=2", __file__]))

dist.init_process_group("gloo")  # "nccl" if each process has its own GPU
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
device = "cuda" if torch.cuda.is_available() else "cpu"
digits = load_digits()
images = torch.tensor(digits.data[rank::ranks] / 16, dtype=torch.float32, device=device)
labels = torch.tensor(digits.target[rank::ranks], device=device)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    @torch.autocast(device, dtype=torch.float16)
    def forward(self, pixels: Tensor) -> Tensor:
        return self.layers(pixels)


model = DistributedDataParallel(Classifier().to(device))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = ampmon.GradScaler(device, init_scale=2.0**24, growth_interval=20, model=model)

for step in range(60):
    batch = torch.randint(len(images), (32,), device=device)
    loss = cross_entropy(model(images[batch]).float(), labels[batch])
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    if rank == 0 and (step % 15 == 0 or step == 59):
        print(f"step {step:3}  loss {loss.item():.3f}")

dist.destroy_process_group()
