"""Trains an fp16 model with Megatron-core's own optimizer and `DynamicGradScaler`, and prints what they did.

They accept only CUDA tensors. So, in this test only, `torch.tensor` creates tensors on the CPU, and parameters report
CUDA types. The argument `watched` turns ampmon on.
"""

from __future__ import annotations

import json
import sys
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from megatron.core.optimizer.grad_scaler import DynamicGradScaler
from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params
from megatron.core.optimizer.optimizer_config import OptimizerConfig

import ampmon
from ampmon.integrations.megatron import watch


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(16, 32)
        self.head = torch.nn.Linear(32, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(inputs).relu())


def made(model: Net) -> Any:
    """Megatron's optimizer for an fp16 model, as `get_megatron_optimizer` builds it for one process."""
    make = torch.tensor
    types = {torch.float16: "torch.cuda.HalfTensor", torch.float32: "torch.cuda.FloatTensor"}
    with (
        mock.patch.object(torch, "tensor", lambda *a, **k: make(*a, **{**k, "device": "cpu"})),
        mock.patch.object(torch.nn.Parameter, "type", lambda self: types[self.dtype], create=True),
    ):
        scaler = DynamicGradScaler(2.0**20, 1.0, 2.0, 0.5, growth_interval=8, hysteresis=2)
        optimizer = Float16OptimizerWithFloat16Params(
            torch.optim.SGD(model.parameters(), lr=0.01),
            OptimizerConfig(fp16=True, clip_grad=0.0),
            scaler,
            lambda *_: None,
        )
    # Newer versions use the first name, older ones the second.
    optimizer.grad_stats_parallel_group = optimizer.model_parallel_group = dist.group.WORLD
    return optimizer


def main(*, watched: bool) -> None:
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    torch.manual_seed(0)
    model = Net().half()
    optimizer = made(model)
    if watched:
        ampmon.init("megatron", "overflows", mode="offline")
        (feed,) = watch(optimizer)
        assert watch(optimizer) == [feed]
    scales, skipped, norms = [], [], []
    for _ in range(60):
        inputs = torch.randn(8, 16).half()
        scale = optimizer.get_loss_scale()
        scales.append(scale.item())
        (model(inputs).float().square().mean() * scale).backward()
        norms.append(model.body.weight.grad.float().square().sum().item())
        skipped.append(not optimizer.step()[0])
        optimizer.zero_grad()
    metrics = ampmon.metrics() if watched else {}
    ampmon.finish()
    counted = {
        "scales": scales,
        "skipped": skipped,
        "norms": norms,
        "weights": [parameter.tolist() for parameter in model.parameters()],
        "metrics": metrics,
    }
    print("COUNTED", json.dumps(counted))


if __name__ == "__main__":
    main(watched=sys.argv[1] == "watched")
