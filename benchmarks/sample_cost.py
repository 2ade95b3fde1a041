"""The time of one sample of the gradients of GPT-2 small, as a multiple of the stock scaler's own pass over them.

That pass is `unscale_`: a fused check for inf and NaN and a multiplication, in place. It and the samples take turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ampmon.config import Config
from ampmon.probe.host import measure as probe


ROUNDS = 9


def shapes() -> list[tuple[int, ...]]:
    """The parameter shapes of GPT-2 small: 148 tensors, 124 million elements."""
    width = 768
    block: list[tuple[int, ...]] = [(width,), (width,)]
    for rows, columns in ((3 * width, width), (width, width)):
        block += [(rows, columns), (rows,)]
    block += [(width,), (width,)]
    for rows, columns in ((4 * width, width), (width, 4 * width)):
        block += [(rows, columns), (rows,)]
    return [(50257, width), (1024, width), *block * 12, (width,), (width,)]


def gradients() -> list[torch.Tensor]:
    """fp32 gradients as fp16 autocast produces them: on fp16's grid, some zero or subnormal."""
    generator = torch.Generator().manual_seed(0)
    made = (torch.randn(shape, generator=generator) * 2**-11 for shape in shapes())
    return [gradient.half().float() for gradient in made]


def measure(_: Path) -> list[dict[str, Any]]:
    """A row for each way: median milliseconds, and the median of the ratios within a round."""
    grads = gradients()
    indices = list(range(len(grads)))
    found, inverse = torch.zeros(1), torch.ones(1)
    chance = np.random.default_rng(0)
    ways: dict[str, Callable[[], object]] = {
        "unscale_": lambda: torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse),
        "sample, default": lambda: probe(grads, indices, Config().sample, chance),
        "sample, every element": lambda: probe(grads, indices, "all", chance),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(ROUNDS + 1):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            if turn:
                times[name].append(1000 * (time.perf_counter() - started))
    return [
        {
            "what": name,
            "median_ms": round(statistics.median(taken), 2),
            "times_unscale": round(_ratio(taken, times["unscale_"]), 3),
        }
        for name, taken in times.items()
    ]


def _ratio(taken: list[float], stock: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(taken, stock, strict=True))
