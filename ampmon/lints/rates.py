"""Whether learning rates move with the updates, and whether they do when one was skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ampmon.lints.reporter import LintReporter


FROZEN_AFTER = 1000
ENOUGH = 8
"""Skips after which the learning rate moved: those of a calibration, or at the end of an epoch, are fewer."""


class Rates:
    """The learning rate of one optimizer's first group, seen at each of its steps. Reads no tensor's value."""

    __slots__ = ("_last", "_moves", "steps")

    def __init__(self) -> None:
        self._last: Any = None
        self._moves = 0
        self.steps = 0

    def differ(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether it was changed since this was asked last."""
        rate = optimizer.param_groups[0].get("lr")
        if type(rate) is not float and isinstance(rate, torch.Tensor):
            rate = id(rate), rate._version
        self.steps += 1
        if rate == self._last:
            return False
        self._last = rate
        self._moves += 1
        return self.steps > 1

    def frozen(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether a scheduler holds the optimizer and has left its rate alone."""
        return self._moves == 1 and bool(getattr(optimizer.step, "_wrapped_by_lr_sched", False))


class Schedule:
    """Joins what the training thread sees of rates with which updates were skipped, as records come to be written."""

    def __init__(self, reporter: Callable[[], LintReporter | None]) -> None:
        self._reporter = reporter
        self._skipped = False
        self._ahead = 0

    def written(self, moved: bool, skipped: bool) -> bool:
        """The next update is written; ``moved``: a rate was changed before it. Whether that was after a skip."""
        scheduled = moved and self._skipped
        self._skipped = skipped
        if scheduled:
            self._ahead += 1
            reporter = self._reporter()
            if self._ahead == ENOUGH and reporter is not None:
                reporter.say("scheduler_on_skip")
        return scheduled
