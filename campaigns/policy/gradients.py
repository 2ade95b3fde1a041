"""Gradients at one scale after another, from the same weights and data, and the samples they would give."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ampmon.numerics.histogram import BINS, EXPONENT_MIN
from ampmon_server.model.series import GradientSeries, Totals


def underflow_network(dtype: torch.dtype = torch.float16) -> Callable[[float], Tensor]:
    """Return a function of the scale: all gradients of a small network, flat. In fp32 it uses no autocast."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 10)
    )
    torch.manual_seed(1)
    inputs, wanted = torch.randn(256, 64), torch.randint(0, 10, (256,))

    def at(scale: float) -> Tensor:
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16, enabled=dtype is torch.float16):
            found = model(inputs)
        (nn.functional.cross_entropy(found.float(), wanted) * 1e-3 * scale).backward()
        return torch.cat(
            [each.grad.flatten() for each in model.parameters() if each.grad is not None]
        )

    return at


def sparse() -> Callable[[float], Tensor]:
    """Return a function of the scale: a million values rounded to fp16, 30 % of them zero at any scale."""
    torch.manual_seed(0)
    values = torch.randn(1_000_000) * torch.exp(torch.randn(1_000_000) * 3) * 2e-7
    values[torch.rand(1_000_000) < 0.3] = 0.0
    return lambda scale: (values * scale).half().float()


def histogram(gradient: Tensor) -> np.ndarray:
    """The histogram as the probe counts it, [64]."""
    magnitude = gradient.abs().double().numpy()
    exponent = np.floor(np.log2(magnitude[magnitude > 0])).astype(int)
    return np.bincount(np.clip(exponent - EXPONENT_MIN, 0, BINS - 1), minlength=BINS)


def samples(gradient: Callable[[float], Tensor], levels: Sequence[int]) -> GradientSeries:
    """One sample every hundred updates, at each of these powers of two, of every element."""
    found = [gradient(2.0**level) for level in levels]
    none, m = np.zeros(len(levels), np.int64), len(levels)
    elements = np.array([each.numel() for each in found])
    totals = Totals(
        parameters=none + 1,
        elements=elements,
        looked=elements,
        zeros=np.array([int((each == 0).sum()) for each in found]),
        inf=none,
        nan=none,
        amax=np.array([float(each.abs().max()) for each in found]),
        sum_squares=np.ones(m),
        histogram=np.stack([histogram(each) for each in found]),
        variance=np.zeros((m, 3)),
        grain=np.zeros(m),
    )
    steps = np.arange(m) * 100
    return GradientSeries(steps, steps, 2.0 ** np.array(levels, np.float64), totals, totals)
