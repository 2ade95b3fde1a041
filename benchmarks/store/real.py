"""Real samples of the gradients of 148 parameters, from training a narrow GPT-2 of 12 layers for a few updates.

Random noise would not do: how real histograms repeat and move decides their compressed size.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import nn

from ampmon import wire
from ampmon.numerics.histogram import Statistics
from ampmon.probe.host import measure
from ampmon_server.demo import text
from ampmon_server.demo.model import ModelSize
from benchmarks import networks
from benchmarks.paired import shown
from benchmarks.store.samples import SCALE, Real


SIZE = ModelSize(layers=12, heads=4, width=64, context=32, batch=4)


@lru_cache(maxsize=1)
def real(samples: int) -> Real:
    """Train, and measure every element of every gradient of the last ``samples`` updates. About half a second each."""
    torch.manual_seed(0)
    characters = text.load("cpu")
    model = networks.gpt2(SIZE, len(text.ALPHABET))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=2**31 - 1)
    taken = [
        _sample(model, optimizer, scaler, characters.batch(SIZE.batch, SIZE.context))
        for _ in shown(range(samples + 4), "real samples")
    ]
    parameters = [
        wire.Parameter(name, tuple(parameter.shape), "float32")
        for name, parameter in model.named_parameters()
    ]
    return Real(parameters, taken[4:])


def _sample(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    batch: networks.Batch,
) -> Statistics:
    """Make one update and measure its scaled gradients."""
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = model(*batch)
    scaler.scale(loss).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None for gradient in gradients)
    known = [gradient for gradient in gradients if gradient is not None]
    measured = measure(known, range(len(known)), "all", np.random.default_rng(0))
    scaler.step(optimizer)
    scaler.update()
    return measured
