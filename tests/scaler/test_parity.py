"""Training with ampmon's scaler gives torch's weights, scale and state, bit for bit.

On the CPU. device/training_suite.py trains the same cells on the emulated device.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import ampmon
from device.place import PLACE


CONSTRUCTORS: list[dict[str, Any]] = [
    {},
    {"init_scale": 4.0, "growth_factor": 4.0, "growth_interval": 2},
    {"init_scale": 2.0**-126, "backoff_factor": 0.25},
    {"init_scale": 2.0**127, "growth_interval": 1},
    {"init_scale": 2.0**20, "backoff_factor": 0.125, "growth_interval": 3},
    {"enabled": False},
]
ROUTES = ("plain", "unscaled", "fused")
UPDATES = 6


@dataclass(frozen=True)
class Case:
    """One cell of the matrix."""

    arguments: dict[str, Any]
    route: str
    optimizers: int
    overflow: bool


CASES = [Case(*cell) for cell in itertools.product(CONSTRUCTORS, ROUTES, (1, 2), (False, True))]
HALF = [
    case
    for case in CASES
    if (CONSTRUCTORS.index(case.arguments) + ROUTES.index(case.route) + case.optimizers) % 2
    == case.overflow
]
"""Half of the matrix, with every combination of any three of the four dimensions."""
STEADY = [case for case in CASES if not case.arguments]
"""Cells whose scale moves seldom enough for the plain gear."""
STEADY_UPDATES = 24
RARELY = ampmon.Config(every=10**6)


def train(scaler: torch.amp.GradScaler, case: Case, updates: int = UPDATES) -> dict[str, Any]:
    """Train under fp16 autocast with some forced overflows; return everything that training leaves behind."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4)
    ).to(PLACE)
    halves = [list(model[0].parameters()), [*model[1].parameters(), *model[2].parameters()]]
    groups = halves if case.optimizers == 2 else [list(model.parameters())]
    optimizers = [
        torch.optim.AdamW(group, lr=1e-2, fused=case.route == "fused") for group in groups
    ]
    scales = []
    for update in range(updates):
        inputs = torch.randn(8, 16).to(PLACE, non_blocking=True)
        targets = torch.randint(0, 4, (8,)).to(PLACE, non_blocking=True)
        with torch.autocast(PLACE, dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(inputs).float(), targets)
        scaler.scale(loss).backward()
        if case.overflow and update in (0, 3, 4, 20):
            # Spoil one optimizer's gradient only, so that with two of them one steps and one skips.
            groups[-1][-1].grad.view(-1)[update % 2] = (float("inf"), float("nan"))[update % 2]
        for optimizer in optimizers:
            if case.route == "unscaled":
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        for optimizer in optimizers:
            optimizer.zero_grad()
    return {
        "weights": [parameter.detach().clone() for parameter in model.parameters()],
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "scaler": scaler.state_dict(),
        "scales": scales,
        "random": torch.rand(4),
    }


def bits(left: Any, right: Any) -> bool:
    """Return whether two nests of tensors and numbers are equal bit for bit, NaN equal to NaN."""
    if isinstance(left, torch.Tensor):
        return (
            left.dtype == right.dtype
            and left.shape == right.shape
            and left.cpu().numpy().tobytes() == right.cpu().numpy().tobytes()
        )
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(bits(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(bits, left, right))
    return left == right or (math.isnan(left) and math.isnan(right))


@pytest.fixture(scope="module")
def stock() -> list[dict[str, Any]]:
    """What the stock scaler leaves behind in each cell."""
    return [train(torch.amp.GradScaler(PLACE, **case.arguments), case) for case in CASES]


@pytest.mark.parametrize(
    "monitored", [None, ampmon.Config(every=1, sample="all"), ampmon.Config(every=3)]
)
def test_the_constructor_gives_what_torchs_gives(
    stock: list[dict[str, Any]], monitored: ampmon.Config | None
) -> None:
    """Every cell of {arguments} x {route} x {1, 2 optimizers} x {overflow or not} ends equal to the stock scaler's.

    Half of the cells are tried if not every update is sampled.
    """
    for case, expected in zip(CASES, stock, strict=True):
        if monitored is not None and monitored.every != 1 and case not in HALF:
            continue
        ours = train(ampmon.GradScaler(PLACE, **case.arguments, monitor=monitored), case)
        assert bits(expected, ours), case


def test_the_plain_gear_gives_what_torchs_gives() -> None:
    """Cells that take the plain gear in most updates, some with an overflow, end equal to the stock scaler's."""
    for case in STEADY:
        stock, scaler = torch.amp.GradScaler(PLACE), ampmon.GradScaler(PLACE, monitor=RARELY)
        assert bits(train(stock, case, STEADY_UPDATES), train(scaler, case, STEADY_UPDATES)), case
        assert scaler.monitor is not None
        assert case.overflow or scaler.monitor.gear is not None


def test_a_watched_scaler_gives_what_it_gave_before(stock: list[dict[str, Any]]) -> None:
    """`watch` leaves training unchanged in half of the matrix, with every element of every update measured."""
    for case in HALF:
        expected = stock[CASES.index(case)]
        scaler = ampmon.watch(
            torch.amp.GradScaler(PLACE, **case.arguments),
            monitor=ampmon.Config(every=1, sample="all"),
        )
        assert bits(expected, train(scaler, case)), case


def test_the_matrix_tells_a_difference() -> None:
    """The comparison detects another back-off factor and a difference of one bit, and overflows do lower the scale."""
    case = Case({"init_scale": 4.0}, "plain", 2, overflow=True)
    stock = train(torch.amp.GradScaler(PLACE, **case.arguments), case)
    other = train(torch.amp.GradScaler(PLACE, init_scale=4.0, backoff_factor=0.25), case)
    nudged = {**stock, "weights": [weight.clone() for weight in stock["weights"]]}
    nudged["weights"][0].view(torch.int32)[0, 0] ^= 1
    assert not bits(stock, other)
    assert not bits(stock, nudged)
    assert stock["scaler"]["scale"] == 4.0 / 2**3
