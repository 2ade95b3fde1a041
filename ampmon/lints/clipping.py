"""Sees whether scaled gradients are clipped: somebody writes into them, and they are of the same size each time."""

from __future__ import annotations

import math

from ampmon.lints.reporter import ENOUGH, LintReporter
from ampmon.probe.ring import Readback


_SAME = 1e-4
_SMALL = 1e-2
"""Who clips gradients divided by the scale does not clip them to less than this."""


class Clipping:
    """An overflow says nothing of clipping: only gradients that are finite count."""

    def __init__(self) -> None:
        self._pending: list[Readback] = []
        self._sizes: list[tuple[float, float]] = []
        """The newest that are finite: norm and largest element."""
        self.is_written = False
        """Whether somebody wrote into the gradients."""

    @property
    def unsettled(self) -> bool:
        """Whether somebody wrote into gradients of which too few were finite yet, as while a scale is searched."""
        return self.is_written and len(self._sizes) < ENOUGH

    def written(self, sizes: Readback | None) -> None:
        """Somebody wrote into the scaled gradients, which now have this norm and largest element; None if unknown."""
        if sizes is not None:
            self._pending.append(sizes)
            self.is_written = True

    def updated(self, scale: float, reporter: LintReporter) -> None:
        """An update has ended; ``scale`` is the newest one known, or 0."""
        while self._pending and self._pending[0].ready():
            norm, peak = self._pending.pop(0).result().tolist()
            if 0 < norm < math.inf:
                self._sizes = [*self._sizes, (norm, peak)][-ENOUGH:]
        if len(self._sizes) < ENOUGH:
            return
        for measure, values in zip(
            ("norm", "largest element"), zip(*self._sizes, strict=True), strict=True
        ):
            if max(values) <= (1 + _SAME) * min(values) and values[0] < _SMALL * scale:
                reporter.say("clip_before_unscale", measure=measure, value=values[0], scale=scale)
