"""A scaler's state before and after each update: read at once on a CPU, followed or requested on a device."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.amp.grad_scaler import GradScaler

from ampmon.client.iteration import Iteration
from ampmon.probe.ring import Readback, ReadbackPart
from ampmon.training import outcome
from ampmon.training.outcome import AnyReading, Reading, ReadingOnDevice, Rules


State: TypeAlias = tuple[float, int]
"""Scale and growth tracker."""
Stamp: TypeAlias = tuple[int, int, int, int]
_MOVES_MAX = 64
"""The most updates that may pass until a reading of the state has arrived."""
_NOTHING = torch.zeros(1, device="cpu")
"""The host copy of found_inf where nothing was found. Shared, so nothing may write into it."""


class ReadingBefore:
    """The state before an update that nothing changed since the ``last`` update, with what it found by then.

    ``flags`` are the found_inf tensors of the optimizers that stepped, on their way to the host.
    """

    __slots__ = ("_flags", "_last", "_read")

    def __init__(self, last: AnyReading, flags: Readback | ReadbackPart) -> None:
        self._last: AnyReading | None = last
        self._flags = flags
        self._read: Reading | None = None

    def ready(self) -> bool:
        return self._last is None or (self._last.ready() and self._flags.ready())

    def result(self) -> Reading:
        if self._last is not None:
            last, found = self._last.result(), self._flags.values()
            self._read = Reading(last.scale, last.growth_tracker, [each != 0 for each in found])
            self._last = None
        assert self._read is not None
        return self._read


class FollowedReading:
    """The state that `update()` leaves on a device, computed on the host from the state before it."""

    __slots__ = ("_before", "_read", "_rules")

    def __init__(self, before: ReadingBefore, rules: Rules) -> None:
        self._before: ReadingBefore | None = before
        self._rules = rules
        self._read: Reading | None = None

    def ready(self) -> bool:
        return self._before is None or self._before.ready()

    def result(self) -> Reading:
        if self._before is not None:
            self._read = Reading(*_after(self._before.result(), self._rules), [])
            self._before = None  # and with it the updates before
        assert self._read is not None
        return self._read


class Mirror:
    """Scale and growth tracker of a scaler on a device after each update, followed with the arithmetic of `update()`.

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
            # Readings requested so far may be older than the write.
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
            self.state = moved(self.state, found, outcome.rules(scaler))
        else:
            self._moves.append((found, outcome.rules(scaler)))
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
        # One assignment, because the training thread may read it at any time.
        self._read = update, (reading.scale, reading.growth_tracker)

    def distrust(self) -> None:
        """Stop following, because the device reported another state."""
        self._trusted = False
        self._forget(self.updates + 1)

    def _forget(self, first: int) -> None:
        self.state, self._moves, self._from = None, [], first


class ScaleFollower:
    """Follows a scaler's state by what its optimizers' steps bring to the host, else requests it from the device.

    The step of an optimizer that is not fused reads found_inf, the one synchronisation of an iteration. With it, scale
    and growth tracker need no reading: the host computes them, and each sample checks them against the device.
    ``failed`` is called if they differ.
    """

    def __init__(self, scaler: Any, failed: Callable[[str, Exception], None]) -> None:
        of = partial(outcome.maker, type(scaler))
        # FSDP's scaler has an `update` of its own in torch.distributed, with the same arithmetic.
        self.decides = of("_maybe_opt_step") == GradScaler.__module__ and of("update").startswith(
            "torch."
        )
        """Whether `step` and `update` are torch's own, so they can be followed, and nothing else moves the scale."""
        self.mirror = Mirror()
        self._failed = failed
        self._last: tuple[AnyReading, Stamp, tuple[Any, Any]] | None = None
        """The newest reading requested after an update, with the stamp of the tensors it read, and these tensors.
        They are kept alive so that no other tensor gets their ids."""

    def decide(
        self, state: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[torch.device, torch.Tensor] | None]:
        """Bring an optimizer's found_inf to the host. Return its state with the host copies, and the non-zero flags.

        The flags are by device. They are None if nothing was brought: all is on the host already, or the scaler cannot
        be followed. Waits for each device once, as the stock step does. Raises what that raises.
        """
        flags: dict[torch.device, torch.Tensor] = state["found_inf_per_device"]
        if not self.decides:
            return state, None
        host, overflowed, on_host = {}, {}, True
        for device, flag in flags.items():
            value = flag.item()
            host[device] = _NOTHING
            if value:
                host[device] = torch.full((1,), value, device="cpu")
                overflowed[device] = flag
            on_host = on_host and flag.is_cpu
        return (state, None) if on_host else ({**state, "found_inf_per_device": host}, overflowed)

    def before(self, scaler: Any, iteration: Iteration) -> AnyReading:
        """The state before `update()`, with what it found for the optimizers that stepped. Waits for no device."""
        found = iteration.found
        if found:
            # `update()` also counts optimizers that were unscaled and not stepped.
            states = scaler._per_optimizer_states.items()
            if all(each in found for each, state in states if state["found_inf_per_device"]):
                iteration.overflowed = any(found.values())
            state = self.mirror.look(scaler)
            # The record of a sample waits for a device in any case.
            if state is not None and iteration.overflowed is not None and not iteration.sampling:
                return Reading(*state, [found.get(each, False) for each in iteration.steps])
        elif self.decides and self._last is not None and self._last[1] == stamp(scaler):
            flags = outcome.flags(scaler, iteration.steps)
            if flags is not None:
                return ReadingBefore(self._last[0], Readback(flags[0], behind=flags[1:]))
        return outcome.read(scaler, iteration.steps)

    def after(
        self, scaler: Any, iteration: Iteration, *, manual: bool
    ) -> tuple[AnyReading, Callable[[Reading], None]]:
        """The state after `update()`, and a function to call with it once it is known. Waits for no device."""
        if not iteration.found:
            return self._asked(scaler, iteration.before, manual=manual)
        state = self.mirror.follow(scaler, None if manual else iteration.overflowed)
        if state is not None and isinstance(iteration.before, Reading):
            return Reading(*state, []), nothing
        return outcome.read(scaler, ()), partial(self._check, self.mirror.updates, state)

    def _asked(
        self, scaler: Any, before: AnyReading | None, *, manual: bool
    ) -> tuple[AnyReading, Callable[[Reading], None]]:
        """Request the state after an update, to be compared with the one that follows from a followed ``before``."""
        after, self._last = outcome.read(scaler, ()), None
        if isinstance(after, ReadingOnDevice):
            self._last = after, stamp(scaler), (scaler._scale, scaler._growth_tracker)
        if isinstance(before, ReadingBefore) and not manual:
            return after, partial(self._compare, before, outcome.rules(scaler))
        return after, nothing

    def resume(self, last: AnyReading, tensors: tuple[Any, Any], versions: tuple[int, int]) -> None:
        """Go on after readings requested elsewhere: the newest one after an update, and the tensors' versions then."""
        scale, tracker = tensors
        self._last = last, (id(scale), versions[0], id(tracker), versions[1]), tensors

    def _check(self, update: int, state: State | None, reading: Reading) -> None:
        """Use the device's reading after an update, or compare the followed state with it. May run on any thread."""
        if state is None:
            self.mirror.heard(update, reading)
        elif self._differs(state, reading):
            self.mirror.distrust()

    def _compare(self, before: ReadingBefore, rules: Rules, reading: Reading) -> None:
        if self._differs(_after(before.result(), rules), reading):
            self.decides = False

    def _differs(self, state: State, reading: Reading) -> bool:
        actual = reading.scale, reading.growth_tracker
        if differs := repr(state) != repr(actual):  # so NaN equals NaN
            words = f"{state} is {actual[0]}, {actual[1]} on the device"
            self._failed("following the scale", ValueError(words))
        return differs


def nothing(_: Reading) -> None:
    """Ignore the state."""


def moved(state: State, found: bool, rules: Rules) -> State:
    """The state after `torch._amp_update_scale_`. An fp32 scale times an fp64 factor is rounded to fp32."""
    scale, tracker = state
    growth_factor, backoff_factor, growth_interval = rules
    if found:
        return _times(scale, backoff_factor), 0
    # torch tests for equality too: an interval set below the tracker lets the scale never grow.
    if tracker + 1 != growth_interval:
        return scale, tracker + 1
    # As in torch, a scale that would be infinite stays, and the count starts again.
    grown = _times(scale, growth_factor)
    return (grown if math.isfinite(grown) else scale), 0


def _after(before: Reading, rules: Rules) -> State:
    return moved((before.scale, before.growth_tracker), True in before.found, rules)


def _times(scale: float, factor: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(scale * factor))


def stamp(scaler: Any) -> Stamp:
    """A value that changes whenever a scaler's tensors are written to or replaced."""
    scale, tracker = scaler._scale, scaler._growth_tracker
    return id(scale), scale._version, id(tracker), tracker._version
