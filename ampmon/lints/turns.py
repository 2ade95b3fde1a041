"""Detects a loss that is passed backward twice, and a pass after the step whose gradients are lost."""

from __future__ import annotations

from ampmon.lints.losses import Losses
from ampmon.lints.reporter import ENOUGH, LintReporter


class BackwardStepOrder:
    """The order of one parameter's backward passes and the optimizer's step within an update."""

    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        self._again = self._stepped = self._late = False
        """Since the last update: whether a loss came twice, the optimizer stepped, a pass followed the step."""
        self._dropped = False
        """Whether a pass followed the step in the last update. False with several optimizers."""
        self._repeats = self._lost = 0
        """Consecutive updates with a loss that came twice, and with a late pass whose gradients were cleared."""

    def passed(self) -> None:
        own, again = self._losses.reaching(id(self))
        self._again |= again
        self._late |= self._stepped and own

    def stepping(self) -> None:
        self._stepped = True

    def unscaling(self, reporter: LintReporter, *, kept: bool) -> None:
        """Called before gradients are unscaled. ``kept``: they still include what the last update left."""
        self._lost = self._lost + 1 if self._dropped and not kept else 0
        if self._lost >= ENOUGH:
            reporter.say("cleared_before_step")

    def updated(self, reporter: LintReporter, *, alone: bool) -> None:
        """Called after an update. ``alone``: the scaler has one optimizer."""
        self._repeats = self._repeats + 1 if self._again else 0
        if self._repeats == ENOUGH:
            reporter.say("backward_twice")
        # With several optimizers, the loss of one may reach another's parameters. The other clears those gradients.
        self._dropped = alone and self._late
        self._again = self._stepped = self._late = False
