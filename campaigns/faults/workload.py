"""A training small enough to repeat a thousand times, with fp16, overflows, skips and samples like a real one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch


UPDATES = 12
SKIPS = 2
SETTINGS = {"init_scale": 2.0**19, "growth_interval": 5}
"""fp16 overflows in the first updates, and the scale grows again before the last."""


def train(
    scaler: torch.amp.GradScaler,
    log: Callable[[dict[str, Any]], object] = lambda values: None,
    stepped: Callable[[int], object] = lambda step: None,
) -> dict[str, Any]:
    """Train, and return losses, scales and a digest of the weights, all exact to the last bit."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses, scales = [], []
    for step in range(UPDATES):
        inputs, targets = torch.randn(8, 8), torch.randint(0, 4, (8,))
        with torch.autocast("cpu", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        log({"loss": loss})
        losses.append(loss.item().hex())
        scales.append(scaler.get_scale())
        stepped(step)
    weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
    return {"losses": losses, "scales": scales, "weights": hashlib.sha256(weights).hexdigest()}
