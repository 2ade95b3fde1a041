"""Whether learning rates move with the updates, and whether they do when one was skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ampmon.lints.teller import Teller


FROZEN_AFTER = 1000
ENOUGH = 8
"""Skips after which the learning rate moved: those of a calibration, or at the end of an epoch, are fewer."""


class Rates:
    """The learning rate of one optimizer's first group, seen at each of its steps. Reads no tensor's value."""

    __slots__ = ("_last", "moves", "steps")

    def __init__(self) -> None:
        self._last: Any = None
        self.steps = 0
        self.moves = 0

    def moved(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether it was changed since this was asked last."""
        rate = optimizer.param_groups[0].get("lr")
        now = (id(rate), rate._version) if isinstance(rate, torch.Tensor) else rate
        moved = self.steps > 0 and now != self._last
        self._last = now
        self.steps += 1
        self.moves += moved
        return moved

    def frozen(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether a scheduler holds the optimizer and has left the rate alone for long. True at most once."""
        if self.steps != FROZEN_AFTER or self.moves:
            return False
        return bool(getattr(optimizer.step, "_wrapped_by_lr_sched", False))


class Schedule:
    """Joins what the training thread sees of rates with which updates were skipped, as records come to be written."""

    def __init__(self, teller: Callable[[], Teller | None]) -> None:
        self._teller = teller
        self._skipped = False
        self._ahead = 0

    def written(self, *, moved: bool, skipped: bool) -> bool:
        """The next update is written; ``moved``: a rate was changed before it. Whether that was after a skip."""
        scheduled = moved and self._skipped
        self._skipped = skipped
        if scheduled:
            self._ahead += 1
            teller = self._teller()
            if self._ahead == ENOUGH and teller is not None:
                teller.say("scheduler_on_skip", count=self._ahead)
        return scheduled
