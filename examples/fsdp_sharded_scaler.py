"""FSDP with its `ShardedGradScaler`, which makes all ranks skip when one shard overflows. `watch` keeps its class.

Start it with `torchrun --nproc-per-node=2 examples/fsdp_sharded_scaler.py`. Plain `python` also starts torchrun.
"""

import os
import sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
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
layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
torch.manual_seed(rank)
half = MixedPrecision(param_dtype=torch.float16, reduce_dtype=torch.float16)
model = FullyShardedDataParallel(
    layers, mixed_precision=half, use_orig_params=True, device_id=torch.device(device)
)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = ampmon.watch(ShardedGradScaler(device, init_scale=2.0**24, growth_interval=20))

for step in range(60):
    batch = torch.randint(len(images), (32,), device=device)
    # Compute the loss in fp32: an fp16 loss times a large scale is inf before any gradient is.
    loss = cross_entropy(model(images[batch]).float(), labels[batch])
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    model.clip_grad_norm_(1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    if rank == 0 and (step % 15 == 0 or step == 59):
        print(f"step {step:3}  loss {loss.item():.3f}")

dist.destroy_process_group()
