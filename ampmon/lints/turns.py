"""Sees whether a loss is passed backward twice, and whether a pass after the step leaves gradients for nothing."""

from __future__ import annotations

from ampmon.lints.losses import Losses
from ampmon.lints.reporter import ENOUGH, LintReporter


class Turns:
    """The backward passes that reach one parameter, and the step, in their order within an update."""

    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        self._again = self._stepped = self._late = False
        """Since the last update: whether a loss came a second time, the optimizer stepped, a pass came after that."""
        self._dropped = False
        """Whether such a pass ended the last update."""
        self._repeats = self._lost = 0
        """Updates in a row with a loss that came twice, and with a late pass whose gradients somebody cleared."""

    def passed(self) -> None:
        """A backward pass has come."""
        own, again = self._losses.reaching(id(self))
        self._again |= again
        self._late |= self._stepped and own

    def stepping(self) -> None:
        """The optimizer is about to step."""
        self._stepped = True

    def unscaling(self, reporter: LintReporter, *, kept: bool) -> None:
        """The gradients are about to be unscaled; ``kept`` if they hold those that the last update left."""
        self._lost = self._lost + 1 if self._dropped and not kept else 0
        if self._lost >= ENOUGH:
            reporter.say("cleared_before_step")

    def updated(self, reporter: LintReporter, *, alone: bool) -> None:
        """An update has ended; ``alone`` if the scaler has one optimizer."""
        self._repeats = self._repeats + 1 if self._again else 0
        if self._repeats == ENOUGH:
            reporter.say("backward_twice")
        # Where there are several, the loss of one may reach another's parameters, which that clears.
        self._dropped = alone and self._late
        self._again = self._stepped = self._late = False
