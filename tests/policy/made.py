"""Runs that overflow where a test says so. Nothing is trained."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from ampmon_server.analysis.policy.history import History
from ampmon_server.analysis.policy.scalers import Torch
from ampmon_server.model.scale_policy import ScalePolicy
from ampmon_server.model.series import empty_gradients


def drive(
    updates: int, overflows: Callable[[int, float], bool], **settings: float
) -> list[tuple[float, bool]]:
    """Drive `torch.amp.GradScaler` and return the scale in force and whether it skipped, per update."""
    scaler = torch.amp.GradScaler("cpu", **settings)  # type: ignore[arg-type]
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    rows = []
    for update in range(updates):
        scaler.scale(weight.sum())  # the first call creates the scale
        scale = scaler.get_scale()
        skipped = overflows(update, scale)
        weight.grad = torch.full((1,), float("inf") if skipped else 0.0)
        scaler.step(optimizer)
        scaler.update()
        rows.append((scale, skipped))
    return rows


def recorded(
    updates: int, overflows: Callable[[int, float], bool], **settings: float
) -> list[tuple[float, bool]]:
    """The same as `drive` with the state machine, which is tested against the real scaler and much faster."""
    machine = Torch(**settings)  # type: ignore[arg-type]
    rows = []
    for update in range(updates):
        scale = machine.scale
        skipped = overflows(update, scale)
        rows.append((scale, skipped))
        if skipped:
            machine.overflow()
        else:
            machine.clean(1)
    return rows


def history(
    rows: list[tuple[float, bool]], nan: set[int] = frozenset(), **settings: float
) -> History:  # type: ignore[assignment]
    """A whole run without samples."""
    steps = np.arange(len(rows), dtype=np.int64)
    return History.of(
        steps,
        np.array([scale for scale, _ in rows]),
        np.array([skipped for _, skipped in rows]),
        np.isin(steps, list(nan)),
        policy=ScalePolicy(**settings),  # type: ignore[arg-type]
        samples=empty_gradients(),
    )
