"""The error of a shifted histogram: gradients of the tasks at one scale, estimated from those at another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import torch
from torch import Tensor, nn

from ampmon.numerics.histogram import ON_GRID_SHARE, elsewhere
from campaigns.policy.gradients import histogram, underflow_network
from campaigns.policy.tasks import TASKS, Task


LEVELS = range(-16, 24, 2)
RANGES = ((-4, -1), (-8, -5), (-16, -9), (-64, -17), (1, 4), (5, 8), (9, 16), (17, 64))


@dataclass(frozen=True)
class Miss:
    """How far the bounds of an estimate from ``bits`` below missed, as shares of all elements."""

    bits: int
    zero_over: float
    zero_under: float
    subnormal_over: float
    subnormal_under: float


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


def misses(gradient: Callable[[float], Tensor | None]) -> Iterator[Miss]:
    """The miss of each pair of scales."""
    for low, here, high, there in pairs(gradient, LEVELS):
        yield _miss(here, there, high - low)


def _miss(here: Tensor, there: Tensor, bits: int) -> Miss:
    estimate = elsewhere(histogram(here), np.array(here.numel()), bits)
    already = float((here == 0).float().mean())
    zero = float((there == 0).float().mean())
    subnormal = float(((there != 0) & (there.abs() < 2.0**-14)).float().mean())
    return Miss(
        bits,
        max(already + float(estimate.flushed_least) - zero, 0.0),
        max(zero - already - float(estimate.flushed_most), 0.0),
        max(float(estimate.subnormal_least) - subnormal, 0.0),
        max(subnormal - float(estimate.subnormal_most), 0.0),
    )


def trained(task: Task, updates: int) -> Callable[[float], Tensor | None]:
    """Return a function of the scale: a task's next gradients, after ``updates``, of the parameters on fp16's grid."""
    torch.manual_seed(0)
    model = task.model()
    optimizer = task.optimizer(model)
    for update in range(updates):
        _backward(task, model, 1000 + update, 256.0)
        for each in model.parameters():
            if each.grad is not None:
                each.grad /= 256.0
        optimizer.step()
        optimizer.zero_grad()

    def at(scale: float) -> Tensor | None:
        model.zero_grad()
        _backward(task, model, 999, scale)
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


def table(all_of: Sequence[Miss]) -> Iterator[str]:
    """Rows by direction and distance: the number of pairs, and each miss's 95 % quantile and maximum, in percent."""
    for least, most in RANGES:
        some = [each for each in all_of if least <= each.bits <= most]
        columns = np.array([[*_columns(each)] for each in some]) * 100
        cells = [
            f"{quantile:.2f} ({worst:.2g})"
            for quantile, worst in zip(
                np.quantile(columns, 0.95, axis=0), columns.max(0), strict=True
            )
        ]
        yield f"| {least} to {most} | {len(some)} | {' | '.join(cells)} |"


def _columns(miss: Miss) -> tuple[float, ...]:
    return miss.zero_over, miss.zero_under, miss.subnormal_over, miss.subnormal_under


def main() -> None:
    torch.set_num_threads(1)
    found = [*misses(underflow_network())]
    for task in TASKS.values():
        for updates in (0, 150):
            found += misses(trained(task, updates))
    print(*table(found), sep="\n")


if __name__ == "__main__":
    main()
