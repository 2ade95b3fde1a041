"""The record of a skipped update says whether its loss was finite, and whether the scaled loss overflowed."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD

import ampmon
from device.place import PLACE
from recording import recording


STEADY = 12
"""After this many updates the plain gear is engaged."""


def tensor(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a tensor that `scale()` accepts; a single number has no dimensions."""
    made = torch.tensor(values[0] if len(values) == 1 else values, dtype=dtype)
    return made.to(PLACE)


class Loop:
    """Updates whose gradients are all infinite, whatever the losses are, except for steady ones.

    ``holds``: whether it keeps its loss until the update ends, as loops do that print it.
    """

    holds = True

    def __init__(self, *, fused: bool = False, scale: float = 2.0**10) -> None:
        self.weight = torch.nn.Parameter(torch.ones(2).to(PLACE))
        self.optimizer: Any = (
            torch.optim.AdamW([self.weight], fused=True) if fused else SGD([self.weight], lr=0.0)
        )
        config = ampmon.Config(every=10**6)
        self.scaler = ampmon.GradScaler(PLACE, init_scale=scale, monitor=config)

    def update(self, *given: Any, skips: bool = True) -> None:
        for each in given:
            self.scaler.scale(each)
        loss = self.weight.sum()
        self.scaler.scale(loss).backward()
        if not self.holds:
            del loss
        if skips:
            self.weight.grad = torch.full_like(self.weight, math.inf)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def steady(self) -> None:
        for _ in range(STEADY):
            self.update(skips=False)
            torch.accelerator.synchronize() if PLACE != "cpu" else None


def recorded_losses(directory: Path) -> list[str | None]:
    return [update.loss for update in recording(directory).updates]


class Named(torch.Tensor):
    """A subclass with only a name of its own, as in fastai."""


GIVEN = [
    ([], "finite"),
    ([math.inf], "not_finite"),
    ([math.nan], "not_finite"),
    ([1e38], "overflowed"),
    ([1.0, math.nan, 1.0], "not_finite"),
    ([1e38, math.inf], "not_finite"),
]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("holds", [False, True])
@pytest.mark.parametrize("steady", [False, True])
@pytest.mark.parametrize(("losses", "state"), GIVEN)
def test_the_losses_of_a_skip_are_reported(
    data_directory: Path, losses: list[float], state: str, *, steady: bool, holds: bool, fused: bool
) -> None:
    """All losses given to `scale()` in an update count, in either gear and for a fused optimizer too."""
    loop = Loop(fused=fused)
    loop.holds = holds
    if steady:
        loop.steady()
        assert loop.scaler.monitor is not None
        assert loop.scaler.monitor.gear is not None
    given = list(map(tensor, losses))
    loop.update(*given)
    loop.update(skips=False)
    assert recorded_losses(data_directory) == [None] * STEADY * steady + [state, None]


@pytest.mark.parametrize(
    ("given", "state"),
    [
        ([tensor(1.0), tensor(math.nan)], "not_finite"),
        ((tensor(1.0), [tensor(2.0)]), "finite"),
        # A number without dimensions is multiplied in the scale's dtype, a tensor with dimensions in its own.
        (tensor(1000.0, dtype=torch.float16), "finite"),
        (tensor(1000.0, 1.0, dtype=torch.float16), "overflowed"),
        (tensor(1000.0, 1.0, dtype=torch.bfloat16), "finite"),
        (tensor(*[1.0] * 2000), None),
        ([tensor(*[1.0] * 2000), tensor(math.nan)], "not_finite"),
        (Named(tensor(math.nan)), "not_finite"),
    ],
)
def test_any_kind_of_loss_is_reported(data_directory: Path, given: Any, state: str | None) -> None:
    """Lists, vectors and other dtypes have a state; beside a loss too large to keep, only non-finite losses show."""
    Loop().update(given)
    assert recorded_losses(data_directory) == [state]


def test_a_loss_that_is_gone_in_the_middle_is_not_known(data_directory: Path) -> None:
    """If a loop that kept its loss before drops it once, the loss's state is unknown."""
    loop = Loop()
    loop.steady()
    loop.holds = False
    loop.update()
    loop.update()
    assert recorded_losses(data_directory)[STEADY:] == [None, "finite"]


def test_what_cannot_be_looked_at_is_not_known(data_directory: Path) -> None:
    """Losses from an iterator, which only torch can consume, have an unknown state."""

    def losses() -> Iterator[torch.Tensor]:
        yield tensor(1.0)

    Loop().update(losses())
    assert recorded_losses(data_directory) == [None]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_a_loss_within_a_transform_has_a_state_unless_it_is_batched(
    data_directory: Path, *, batched: bool, fused: bool
) -> None:
    """A loss scaled within `torch.func.grad` has a state, one within `vmap` has none, and neither is an error."""
    loop = Loop(fused=fused)

    def scaled(weight: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = loop.scaler.scale(weight.square().sum())
        return loss

    way = torch.func.grad(scaled)
    rows = torch.ones(3, 2).to(PLACE) if batched else torch.ones(2).to(PLACE)
    for _ in range(STEADY):
        (torch.func.vmap(way) if batched else way)(rows)
        loop.update()
    assert loop.scaler.monitor is not None
    assert loop.scaler.monitor.errors == 0
    assert recorded_losses(data_directory) == [None if batched else "finite"] * STEADY


class Keeping(torch.autograd.Function):
    """Keeps a tensor in its context, as many user functions do; no backward pass frees it."""

    kept: weakref.ref[torch.Tensor]

    @staticmethod
    def forward(context: Any, inputs: torch.Tensor) -> torch.Tensor:
        context.mine = inputs.detach() * 2
        Keeping.kept = weakref.ref(context.mine)
        return inputs.clone()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


@pytest.mark.parametrize("holds", [False, True])
@pytest.mark.parametrize("steady", [False, True])
def test_no_graph_is_kept(*, steady: bool, holds: bool) -> None:
    """A loss's graph is freed when the training drops it, before the update ends."""
    loop = Loop()
    loop.holds = holds
    if steady:
        loop.steady()
    loop.scaler.scale(Keeping.apply(loop.weight).sum()).backward()  # type: ignore[no-untyped-call]
    gc.collect()
    assert Keeping.kept() is None
    loop.scaler.step(loop.optimizer)
    loop.scaler.update()
