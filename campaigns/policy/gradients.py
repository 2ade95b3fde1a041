"""Gradients at one scale after another, from the same weights and data, and the samples they would give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import permutations

import numpy as np
import torch
from torch import Tensor, nn

from ampmon.numerics.histogram import BINS, EXPONENT_MIN, ON_GRID_SHARE
from ampmon_server.model.series import GradientSeries, Totals
from campaigns.policy.tasks import Task


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


def pairs(
    gradient: Callable[[float], Tensor | None], levels: Iterable[int]
) -> Iterator[tuple[int, Tensor, int, Tensor]]:
    """Each two scales at which a gradient is finite and has equally many elements, with the gradient at both."""
    found = {level: gradient(2.0**level) for level in levels}
    usable = {
        level: each
        for level, each in found.items()
        if each is not None and bool(torch.isfinite(each).all())
    }
    for (low, here), (high, there) in permutations(usable.items(), 2):
        if len(here) == len(there):
            yield low, here, high, there


def trained(task: Task, updates: int, seed: int = 0) -> Callable[[float], Tensor | None]:
    """Return a function of the scale: a task's next gradients, after ``updates``, of the parameters on fp16's grid."""
    torch.manual_seed(seed)
    first = 100_000 * seed
    model = task.model()
    optimizer = task.optimizer(model)
    for update in range(updates):
        _backward(task, model, first + 1000 + update, 256.0)
        for each in model.parameters():
            if each.grad is not None:
                each.grad /= 256.0
        optimizer.step()
        optimizer.zero_grad()

    def at(scale: float) -> Tensor | None:
        model.zero_grad()
        _backward(task, model, first + 999, scale)
        grads = [each.grad for each in model.parameters() if each.grad is not None]
        judged = [each.flatten() for each in grads if _on_grid(each)]
        return torch.cat(judged) if judged else None

    return at


def _on_grid(grad: Tensor) -> bool:
    exact = not bool(torch.isfinite(grad).all()) or grad == grad.half().float()
    return exact if isinstance(exact, bool) else float(exact.float().mean()) >= ON_GRID_SHARE


def _backward(task: Task, model: nn.Module, seed: int, scale: float) -> None:
    inputs, wanted = task.batch(torch.Generator().manual_seed(seed))
    with torch.autocast("cpu", dtype=torch.float16):
        found = model(inputs)
    (task.loss(found.float(), wanted) * scale).backward()
