"""Detects clipping of scaled gradients: other code writes into them, and their size is the same each time."""

from __future__ import annotations

import math

from ampmon.lints.reporter import ENOUGH, LintReporter
from ampmon.probe.ring import Readback


_SAME = 1e-4
_SMALL = 1e-2
"""Code that takes the scale into account does not clip to less than this times the scale."""


class Clipping:
    """Compares the sizes of finite gradients only, because an overflow says nothing about clipping."""

    def __init__(self) -> None:
        self._pending: list[Readback] = []
        self._sizes: list[tuple[float, float]] = []
        """Norm and largest element of the newest finite gradients."""
        self.is_written = False
        """Whether other code wrote into the gradients."""

    @property
    def unsettled(self) -> bool:
        """Whether other code wrote into gradients, but too few were finite so far, as while the scale still falls."""
        return self.is_written and len(self._sizes) < ENOUGH

    def written(self, sizes: Readback | None) -> None:
        """Called after other code wrote into the scaled gradients. ``sizes``: norm and largest element, or None."""
        if sizes is not None:
            self._pending.append(sizes)
            self.is_written = True

    def updated(self, scale: float, reporter: LintReporter) -> None:
        """Called after an update. ``scale`` is the newest known one, or 0."""
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
