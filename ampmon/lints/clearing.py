"""Detects gradients that are cleared before the optimizer steps, or between one batch's backward passes."""

from __future__ import annotations

import torch

from ampmon.lints.reporter import ENOUGH, LintReporter
from ampmon.probe.ring import Readback


class Clearing:
    """After a step whose gradients are all zero, also reads what the backward pass leaves in one of them."""

    def __init__(self) -> None:
        self.wants = True
        """Whether to measure the gradients before the next step."""
        self._left: Readback | None = None
        """The number of non-zero elements of one gradient after the first backward pass of an update."""
        self._sizes: Readback | None = None
        """Norm and largest element of all gradients at the step of the same update."""
        self._suspect = False
        """Whether all gradients were zero at the last measured step."""
        self._emptied = 0
        self._lost = 0
        """Updates in which the gradient was missing when a later backward pass began."""
        self._gone = False
        self._between: Readback | None = None
        self._betweens: list[Readback] = []

    def passed(self, gradient: torch.Tensor | None) -> None:
        """Called after the first backward pass of an update."""
        if self._suspect and self.wants and gradient is not None:
            self._left = Readback(torch.count_nonzero(gradient))

    def emptied(self) -> None:
        """Called when the optimizer steps and none of its parameters has a gradient."""
        self._emptied += 1

    def stepping(self, sizes: Readback | None) -> None:
        """Called when the optimizer steps after other code wrote into its gradients. ``sizes``: None if unknown."""
        self._sizes = sizes or self._sizes

    def gone(self) -> None:
        """Called when a later backward pass of the batch begins and the gradient is missing."""
        self._gone = True

    def begins(self, sizes: Readback | None) -> None:
        """Called when a later pass begins after other code wrote into the gradients. ``sizes``: None if unknown."""
        self._between = sizes

    def updated(self, reporter: LintReporter, *, accumulates: bool) -> None:
        """Called after an update. ``accumulates``: whether its backward passes should add up."""
        self._judge_step(reporter)
        if accumulates:
            self._lost += self._gone
            self._betweens += [self._between] if self._between is not None else []
        self._gone, self._between = False, None
        empty = sum(each.ready() and _empty(each) for each in self._betweens)
        if self._lost + empty >= ENOUGH:
            reporter.say("cleared_within_batch")

    def _judge_step(self, reporter: LintReporter) -> None:
        if self._emptied >= ENOUGH:
            reporter.say("cleared_before_step")
        sizes, left = self._sizes, self._left
        self.wants = sizes is None
        if sizes is None or not sizes.ready() or not (left is None or left.ready()):
            return
        if self._suspect and left is not None and left.result().tolist() and _empty(sizes):
            reporter.say("cleared_before_step")
        self._suspect = self.wants = _empty(sizes)
        self._sizes = self._left = None


def _empty(sizes: Readback) -> bool:
    return not any(sizes.result().tolist())
