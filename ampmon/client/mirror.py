"""A scaler's state, followed on the host by the arithmetic of `update()`, so that nobody need ask the device for it."""

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
"""Updates at most between one whose state is read and the first before which it is known."""


class Mirror:
    """What scale and growth tracker of a scaler on a device are after each update, where that can be known.

    It is known from a reading that has arrived, if the host heard of each update since what was found, and nothing but
    `update()` wrote into the two tensors: their version counters show it.
    """

    def __init__(self) -> None:
        self.state: State | None = None
        """After the newest update; None where it is not known."""
        self.updates = 0
        """Updates that were followed."""
        self._stamp: Stamp | None = None
        self._tensors: tuple[Any, ...] = ()
        """Those stamped: no other may have their ids."""
        self._moves: list[tuple[bool, Rules]] = []
        """Of the newest updates what was found, and the rules they went by, while the state is not known."""
        self._from = 0
        """A reading of this update is the first that leads to the state."""
        self._read: tuple[int, State] | None = None
        self._trusted = True

    def look(self, scaler: Any) -> State | None:
        """The state before an update, which is about to be called."""
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
        """The state after an update that has returned. ``found``: whether it found anything; None where not known."""
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
        """So many more updates were followed elsewhere: the state after them, and these tensors' versions."""
        self.state, self._tensors = state, tensors
        self._stamp = id(tensors[0]), versions[0], id(tensors[1]), versions[1]
        self.updates += updates

    def heard(self, update: int, reading: Reading) -> None:
        """The device's word on the state after the update with this number. May be called on another thread."""
        self._read = update, (reading.scale, reading.growth_tracker)

    def distrust(self) -> None:
        """The device has said otherwise: follow it no more."""
        self._trusted = False
        self._forget(self.updates + 1)

    def _forget(self, first: int) -> None:
        self.state, self._moves, self._from = None, [], first


def moved(state: State, found: bool, rules: Rules) -> State:
    """What `torch._amp_update_scale_` makes of a state. An fp32 scale times an fp64 factor is rounded to fp32."""
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
    """By what the scale of a scaler moves now."""
    return scaler._growth_factor, scaler._backoff_factor, scaler._growth_interval


def stamp(scaler: Any) -> Stamp:
    """Differs once anything is written into a scaler's tensors: they are others then, or of another version."""
    scale, tracker = scaler._scale, scaler._growth_tracker
    return id(scale), scale._version, id(tracker), tracker._version
