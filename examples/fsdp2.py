"""FSDP2: `fully_shard` makes the parameters DTensors, and the plain scaler agrees on overflows across the shards.

Start it with `torchrun --nproc-per-node=2 examples/fsdp2.py`. Plain `python` also starts torchrun.
"""

import os
import sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy

import ampmon


if "RANK" not in os.environ:
    from torch.distributed.run import main

    sys.exit(main(["--standalone", "--nproc-per-node=2", __file__]))

dist.init_process_group("gloo")  # "nccl" if each process has its own GPU
rank, ranks = dist.get_rank(), dist.get_world_size()
device = "cuda" if torch.cuda.is_available() else "cpu"
digits = load_digits()
images = torch.tensor(digits.data[rank::ranks] / 16, dtype=torch.float32, device=device)
labels = torch.tensor(digits.target[rank::ranks], device=device)

torch.manual_seed(0)  # the same weights on all ranks, then different batches
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
torch.manual_seed(rank)
mesh = init_device_mesh(device, (ranks,))
half = MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float32)
for layer in (model[0], model[2], model):
    fully_shard(layer, mesh=mesh, mp_policy=half)
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
