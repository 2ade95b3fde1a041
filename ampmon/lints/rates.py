"""Tracks whether learning rates change from update to update, and after a skip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ampmon.lints.reporter import LintReporter


FROZEN_AFTER = 1000
ENOUGH = 8
"""Rate changes after a skip that are reported. A calibration or an epoch's end causes fewer."""


class Rates:
    """The learning rate of an optimizer's first group, checked at each step. Reads no tensor's value."""

    __slots__ = ("_last", "_moves", "steps")

    def __init__(self) -> None:
        self._last: Any = None
        self._moves = 0
        self.steps = 0

    def differ(self, optimizer: torch.optim.Optimizer) -> bool:
        """Count a step. Return whether the rate has changed since the last one."""
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
        """Whether a scheduler holds the optimizer but has never changed its rate."""
        return self._moves == 1 and bool(getattr(optimizer.step, "_wrapped_by_lr_sched", False))


class Schedule:
    """Combines rate changes, seen on the training thread, with skips, known when records are written."""

    def __init__(self, reporter: Callable[[], LintReporter | None]) -> None:
        self._reporter = reporter
        self._skipped = False
        self._ahead = 0

    def written(self, moved: bool, skipped: bool) -> bool:
        """Called with each update in order. Return whether a rate ``moved`` between a skip and this update."""
        scheduled = moved and self._skipped
        self._skipped = skipped
        if scheduled:
            self._ahead += 1
            reporter = self._reporter()
            if self._ahead == ENOUGH and reporter is not None:
                reporter.say("scheduler_on_skip")
        return scheduled
