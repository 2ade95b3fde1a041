"""Judges what other code does to the gradients of an optimizer: clearing, clipping, division by the scale."""

from __future__ import annotations

import math

import torch

from ampmon.lints.reporter import ENOUGH, LintReporter
from ampmon.probe.ring import Readback


class Clearing:
    """After a step whose gradients are all zero, also reads what the backward pass leaves in one of them."""

    def __init__(self, reporter: LintReporter) -> None:
        self._reporter = reporter
        self.wants = True
        """Whether to measure the gradients before the next step."""
        self._left: Readback | None = None
        """The number of non-zero elements of one gradient after the first backward pass of an update."""
        self._sizes: Readback | None = None
        """Norm and largest element of all gradients at the step of the same update."""
        self._suspect = False
        """Whether all gradients were zero at the last measured step."""
        self.emptied = 0
        """Times that the optimizer stepped and none of its parameters had a gradient."""
        self._lost = 0
        """Updates in which the gradient was missing when a later backward pass began."""
        self._betweens: list[tuple[Readback, Readback]] = []

    @property
    def suspects(self) -> bool:
        """Whether an earlier update may have cleared gradients between its backward passes."""
        return bool(self._lost or self._betweens)

    def passed(self, gradient: torch.Tensor | None) -> None:
        """Called after the first backward pass of an update."""
        if self._suspect and self.wants and gradient is not None:
            self._left = Readback(torch.count_nonzero(gradient))

    def stepping(self, sizes: Readback | None) -> None:
        """Called when the optimizer steps after other code wrote into its gradients. ``sizes``: None if unknown."""
        self._sizes = sizes or self._sizes

    def updated(
        self, *, accumulates: bool, gone: bool, between: tuple[Readback, Readback] | None
    ) -> None:
        """Called after an update. ``accumulates``: whether its backward passes should add up.

        ``gone``: the gradient was missing when a later pass began. ``between``: sizes of all gradients then, if other
        code had written into them, and after the last pass. Gradients that are zero by themselves are zero there too.
        """
        self._judge_step()
        if accumulates:
            self._lost += gone
            self._betweens += [between] if between is not None else []
        known = [(then, last) for then, last in self._betweens if then.ready() and last.ready()]
        empty = sum(_empty(then) and not _empty(last) for then, last in known)
        if self._lost + empty >= ENOUGH:
            self._reporter.say("cleared_within_batch")

    def _judge_step(self) -> None:
        if self.emptied >= ENOUGH:
            self._reporter.say("cleared_before_step")
        sizes, left = self._sizes, self._left
        # Not again while a measurement is on its way.
        self.wants = sizes is None
        if sizes is None or not sizes.ready() or not (left is None or left.ready()):
            return
        if self._suspect and left is not None and left.result().tolist() and _empty(sizes):
            self._reporter.say("cleared_before_step")
        self._suspect = self.wants = _empty(sizes)
        self._sizes = self._left = None


def _empty(sizes: Readback) -> bool:
    return not any(sizes.result().tolist())


# clip_grad_norm_ adds 1e-6 to the norm that it divides by, and fp32 rounds.
_SAME = 1e-4
_SMALL = 1e-2
"""Code that takes the scale into account does not clip to less than this times the scale."""


class Clipping:
    """Compares the sizes of finite gradients only, because an overflow says nothing about clipping."""

    def __init__(self, reporter: LintReporter) -> None:
        self._reporter = reporter
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

    def updated(self, scale: float) -> None:
        """Called after an update. ``scale`` is the newest known one, or 0."""
        while self._pending and self._pending[0].ready():
            norm, peak = self._pending.pop(0).result().tolist()
            if 0 < norm < math.inf:
                self._sizes = [*self._sizes, (norm, peak)][-ENOUGH:]
        if len(self._sizes) < ENOUGH:
            return
        norms, peaks = zip(*self._sizes, strict=True)
        for measure, clip, values in (
            ("norm", "clip_grad_norm_(model.parameters(), max_norm)", norms),
            ("largest element", "clip_grad_value_(model.parameters(), clip_value)", peaks),
        ):
            if max(values) <= (1 + _SAME) * min(values) and values[0] < _SMALL * scale:
                self._reporter.say(
                    "clip_before_unscale", measure=measure, clip=clip, value=values[0], scale=scale
                )


_LARGE = 2.0**10
"""A loop may divide gradients by a smaller number for other reasons, such as the number of processes."""


class HandUnscaling:
    """Compares one gradient before and after other code wrote into it, and tells whether that divided by the scale."""

    def __init__(self, reporter: LintReporter) -> None:
        self._reporter = reporter
        self._made: torch.Tensor | None = None
        """The gradient's norm after the newest backward pass."""
        self._pending: list[Readback] = []
        self._divided = 0
        """Updates in which it was divided by the scale."""

    @torch.no_grad()
    def passed(self, gradient: torch.Tensor | None) -> None:
        """Called after a backward pass in a loop that writes into gradients."""
        self._made = None if gradient is None else torch.linalg.vector_norm(gradient)

    @torch.no_grad()
    def stepping(self, gradient: torch.Tensor | None) -> None:
        """Called before gradients are unscaled, if other code wrote into them."""
        if self._made is not None and gradient is not None:
            norms = self._made, torch.linalg.vector_norm(gradient)
            self._pending.append(Readback(torch.stack(norms)))
        self._made = None

    def updated(self, scale: float) -> None:
        """Called after an update. ``scale`` is the newest known one, or 0."""
        while self._pending and self._pending[0].ready():
            made, left = self._pending.pop(0).result().tolist()
            near = made > 0 and abs(left / made * scale - 1) < _SAME
            self._divided += near and scale >= _LARGE
        if self._divided >= ENOUGH:
            why = "The loop divides the gradients by the scale itself"
            self._reporter.say("unscaled_twice", why=why)
