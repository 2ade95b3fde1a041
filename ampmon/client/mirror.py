"""Follows a scaler's state on the host with the arithmetic of `update()`, so the device need not be read."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from ampmon.training.outcome import Reading


State: TypeAlias = tuple[float, int]
"""Scale and growth tracker."""
Rules: TypeAlias = tuple[float, float, int]
"""Growth factor, backoff factor, growth interval."""
Stamp: TypeAlias = tuple[int, int, int, int]
_MOVES_MAX = 64
"""The most updates that may pass until a reading of the state has arrived."""


class Mirror:
    """Scale and growth tracker of a scaler on a device after each update, as far as they can be known.

    They follow from a reading that has arrived, under two conditions. The host knows for each update since whether it
    found an overflow. Only `update()` has written into the two tensors, as their version counters show.
    """

    def __init__(self) -> None:
        self.state: State | None = None
        """The state after the newest update; None if unknown."""
        self.updates = 0
        """Number of updates that were followed."""
        self._stamp: Stamp | None = None
        self._tensors: tuple[Any, ...] = ()
        """The stamped tensors, kept alive so that no other tensor gets their ids."""
        self._moves: list[tuple[bool, Rules]] = []
        """While the state is unknown: whether each of the newest updates found an overflow, and its rules."""
        self._from = 0
        """The first update whose reading leads to the current state."""
        self._read: tuple[int, State] | None = None
        self._trusted = True

    def look(self, scaler: Any) -> State | None:
        """The state before an update that is about to be called; None if unknown."""
        if self._stamp != stamp(scaler):
            self._forget(self.updates + 1)
        if self.state is None and self._read is not None and self._trusted:
            number, state = self._read
            if number >= self._from:
                since = self.updates - number
                for found, rules in self._moves[len(self._moves) - since :]:
                    state = moved(state, found, rules)
                self.state, self._moves = state, []
        return self.state

    def follow(self, scaler: Any, found: bool | None) -> State | None:
        """The state after an update that has returned. ``found``: whether it found an overflow; None if unknown."""
        self.updates += 1
        self._stamp, self._tensors = stamp(scaler), (scaler._scale, scaler._growth_tracker)
        if found is None or len(self._moves) == _MOVES_MAX:
            self._forget(self.updates)
        elif self.state is not None:
            self.state = moved(self.state, found, rules_of(scaler))
        else:
            self._moves.append((found, rules_of(scaler)))
        return self.state

    def resume(
        self, state: State, tensors: tuple[Any, Any], versions: tuple[int, int], updates: int
    ) -> None:
        """Go on after ``updates`` updates that were followed elsewhere, with the state and versions after them."""
        self.state, self._tensors = state, tensors
        self._stamp = id(tensors[0]), versions[0], id(tensors[1]), versions[1]
        self.updates += updates

    def heard(self, update: int, reading: Reading) -> None:
        """Take the device's reading of the state after the update with this number. May be called on another thread."""
        self._read = update, (reading.scale, reading.growth_tracker)

    def distrust(self) -> None:
        """Stop following, because the device reported another state."""
        self._trusted = False
        self._forget(self.updates + 1)

    def _forget(self, first: int) -> None:
        self.state, self._moves, self._from = None, [], first


def moved(state: State, found: bool, rules: Rules) -> State:
    """The state after `torch._amp_update_scale_`. An fp32 scale times an fp64 factor is rounded to fp32."""
    scale, tracker = state
    growth_factor, backoff_factor, growth_interval = rules
    if found:
        return _times(scale, backoff_factor), 0
    if tracker + 1 != growth_interval:
        return scale, tracker + 1
    grown = _times(scale, growth_factor)
    return (grown if math.isfinite(grown) else scale), 0


def _times(scale: float, factor: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(scale * factor))


def rules_of(scaler: Any) -> Rules:
    """The rules by which the scale of a scaler changes now."""
    return scaler._growth_factor, scaler._backoff_factor, scaler._growth_interval


def stamp(scaler: Any) -> Stamp:
    """A value that changes whenever a scaler's tensors are written to or replaced."""
    scale, tracker = scaler._scale, scaler._growth_tracker
    return id(scale), scale._version, id(tracker), tracker._version
