"""The plain gear: a short path for updates in which nothing new happens. The full gear checks everything else.

The monitor engages it at the end of an update, and leaves it for anything else: an overflow, another scale, a step out
of order, any other hook. The iteration then continues in the full gear, which gets what the plain gear has gathered.

The steps of fused optimizers do not bring found_inf to the host. Then records wait for a copy of the scaler's state.
If that shows another scale, the plain gear ends.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampmon.client import current_run
from ampmon.client.fused import FusedUpdate, FusedUpdates
from ampmon.client.iteration import Iteration, PendingUpdate
from ampmon.probe.accelerator import capturing
from ampmon.probe.attribution import keep
from ampmon.training import outcome
from ampmon.training.outcome import Reading, ReadingOnDevice
from ampmon.wire.template import steady_updates


if TYPE_CHECKING:
    from ampmon.client.monitor import Monitor

LOOK_EVERY = 64
"""One in this many updates goes through the full gear, which checks everything that may have changed."""
_WORTH_IT = 4
"""The plain gear is not engaged for fewer updates."""


class PlainGear:
    """Handles updates in which the same optimizers step by the same paths, and none skips.

    `scaling`, `unscaling`, `stepping` and `updating` say whether all is as expected. If so, the caller calls the stock
    method kept here. If not, it calls the monitor's own hook, which leaves this gear first. This class uses private
    attributes of the monitor.
    """

    __slots__ = (
        "_account",
        "_ahead",
        "_asks",
        "_at",
        "_decide",
        "_decided",
        "_done",
        "_expected",
        "_fused",
        "_interval",
        "_iteration",
        "_left",
        "_losses",
        "_monitor",
        "_on_host",
        "_optimizers",
        "_recorder",
        "_scale",
        "_scaler",
        "_script",
        "_steps",
        "_stream",
        "_template",
        "_tensors",
        "_tracker",
        "_unscale",
        "_update",
        "_versions",
        "_weak",
        "decide",
        "scale",
        "step",
    )
    scale: Callable[..., Any]
    step: Callable[..., float | None]
    decide: Callable[..., float | None]
    _decide: Callable[..., float | None]
    _unscale: Callable[..., dict[torch.device, Tensor]]
    _update: Callable[..., Any]
    """The base class's functions. Call each with the scaler as the first argument."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._account = monitor._account

    def engage(self, scaler: Any, ended: PendingUpdate) -> None:
        """Take over the coming updates, if they may be like the one that ended and nothing else is due in them."""
        monitor, after, recorder = self._monitor, ended.after, self._monitor._recorder
        if recorder is None or recorder.scarce or not self._is_plain(scaler, ended):
            return
        stock = scaler._ampmon_stock()
        self._left = self._updates_to_take(ended)
        if self._left < _WORTH_IT or None in stock:
            return
        self.scale, self._unscale, self.step, self._decide, self._update = stock
        self._stream, self._recorder = ended.stream, recorder
        self._steps = ended.iteration.steps
        self._scale, steps = monitor._scale, tuple(self._steps.values())
        self._template = steady_updates(self._stream.name, self._scale, steps)
        self._scaler = ref(scaler)
        self._on_host = scaler._scale.is_cpu
        self.decide = self._decide if self._on_host else self._decide_on_device
        self._tensors = scaler._scale, scaler._growth_tracker
        self._versions = self._tensors[0]._version, self._tensors[1]._version
        """Versions of the tensors after the newest update. Only `update()` may write into them."""
        self._interval = scaler._growth_interval
        self._at = self._decided = self._done = 0
        # id is an optimizer's step, ~id its unscaling, None `update()`: a call too many meets None.
        calls = self._script = ended.iteration.calls
        self._expected: tuple[int | None, ...] = (*calls, None)
        self._ahead: frozenset[int] = frozenset()
        """Ids of optimizers on a device whose gradients may change before the host learns what was found."""
        self._asks = not isinstance(after, Reading)
        """Whether the host learns it only after `update()`."""
        if not isinstance(after, Reading):
            self._ahead = frozenset(self._steps)
            self._fused = FusedUpdates(monitor, self._stream, self._template, self._tensors, after)
        else:
            self._tracker, pairs = after.growth_tracker, pairwise((0, *calls))
            if not self._on_host:
                # `step` itself unscaled if id comes just before ~id. Else the loop may clip now.
                self._ahead = frozenset(~call for last, call in pairs if call < 0 and last != ~call)
        self._optimizers = {
            each: ref(monitor._optimizers.living(each), self._forget) for each in map(called, calls)
        }
        self._begin(Iteration())
        self._weak = ended.iteration.losses_live()
        """Whether a weak reference to a loss is enough: training held its losses until the end of the last update."""
        monitor.gear = self

    def _updates_to_take(self, ended: PendingUpdate) -> int:
        """How many updates may come before a growth, and before a sample of any optimizer: they may take turns."""
        monitor, after, updates = self._monitor, ended.after, [LOOK_EVERY - 1]
        if isinstance(after, Reading):
            # A growth changes the scale, and the template has only one.
            updates.append(ended.growth_interval - after.growth_tracker - 1)
        if monitor.sampler.here():
            updates += map(monitor._budget.until_due, monitor._optimizers.recent())
        return min(updates)

    def _begin(self, iteration: Iteration) -> None:
        """Start an iteration that holds the losses, and culprits that a device finds. The full gear may continue it."""
        self._iteration, self._losses = iteration, iteration.losses

    def _is_plain(self, scaler: Any, ended: PendingUpdate) -> bool:
        monitor = self._monitor
        names, calls = monitor._optimizers, ended.iteration.calls
        # Where no optimizer's step brings anything to the host.
        asked = isinstance(ended.after, ReadingOnDevice) and not ended.iteration.found
        unscaled = [~call for call in calls if call < 0]
        return (
            unscaled != []
            and monitor.follower.decides
            # A step that raised is in `calls` only.
            and [call for call in calls if call >= 0] == list(ended.iteration.steps)
            # On a CPU, `_unscale_grads_` alone must decide what is found.
            and (not scaler._scale.is_cpu or outcome.is_torchs(type(scaler), "unscale_"))
            and None not in [names.living(called(call)) for call in calls]
            # The turns of this optimizer say when the next sample is due.
            and names.living(unscaled[0]) is names.last()
            and monitor._scale > outcome.DYING_SCALE
            and (asked or self._is_known(ended))
            # If the device is far behind, skips are known so late that records would pile up.
            and ended.stream.waiting < LOOK_EVERY
            and not monitor._activations.follows(ended.stream.ordinal)
            and not monitor._linter.looking
            and not monitor._order.learning
            and not monitor._account.awaiting
        )

    def _is_known(self, ended: PendingUpdate) -> bool:
        """Whether the host knows the state after an update without skips. On a device, each step reads found_inf."""
        before, after = ended.iteration.before, ended.after
        return (
            isinstance(before, Reading)
            and isinstance(after, Reading)
            and True not in before.found
            and after.scale == self._monitor._scale
            and ended.stream.idle
        )

    def leave(self) -> None:
        """Hand the current iteration over to the full gear."""
        monitor = self._monitor
        monitor.gear = None
        if self._asks:
            self._fused.close()
        if not self._on_host:
            last = self._fused.last if self._asks else Reading(self._scale, self._tracker, [])
            monitor.follower.resume(last, self._tensors, self._versions)
        so_far = self._script[: self._at]
        begun = any(call < 0 for call in so_far)
        monitor._optimizers.turned(self._done + begun)
        # With `_asks`, `stepping` reports each step to the linter.
        for each in () if self._asks else self._steps:
            if (optimizer := self._optimizers[each]()) is not None:
                monitor._linter.stepped(optimizer, self._done)
        iteration = monitor._iteration = self._iteration
        iteration.loss = None  # from an `update()` that raised; more losses may follow
        # Unscaled gradients cannot be sampled any more.
        iteration.sampling = False if begun else None
        monitor.sampler.resume(len(iteration.losses))
        for call in so_far:
            self._replay(iteration, call)

    def _replay(self, iteration: Iteration, call: int) -> None:
        """Tell the full gear about an optimizer that was unscaled or stepped in the current iteration."""
        monitor, optimizer = self._monitor, self._optimizers[called(call)]()
        iteration.calls.append(call)
        if call >= 0:
            iteration.steps[call] = self._steps[call]
            # `_decided` counts the first steps, for which nothing was found.
            if len(iteration.steps) <= self._decided:
                iteration.found[call] = False
            monitor._begun = call
        if optimizer is not None:
            if call >= 0 and not self._asks:
                monitor._linter.stepping(optimizer, self._steps[call].path)
            monitor.meet(self._scaler(), optimizer)

    def _forget(self, _: object) -> None:
        """Expect no call any more: an optimizer is gone, and another may get its id."""
        # 0 is no id, no ~id and not None.
        self._expected = (0,) * len(self._expected)

    # -- in the order an iteration calls them -------------------------------------------------------

    def scaling(self, outputs: Any) -> bool:
        """Keep the losses. Return whether `scale` may be called with them."""
        recorder, stream = self._recorder, self._stream
        if current_run.current() is not recorder:
            return False
        try:
            if self._weak and type(outputs) is Tensor:
                self._losses.append(ref(outputs))
            else:
                keep(self._losses, outputs)
        except Exception as error:
            self._monitor.failed("scaling", error)
        stream.updating = True
        recorder.recent = stream
        return True

    def unscaling(
        self, scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any
    ) -> dict[torch.device, Tensor] | None:
        """Call the stock `_unscale_grads_`, or return None if that is not expected now.

        Gradients that are not finite are left to the full gear.
        """
        at = self._at
        if self._expected[at] != ~id(optimizer) or (self._ahead and capturing()):
            return None
        self._at = at + 1
        found = self._unscale(scaler, optimizer, *args, **kwargs)
        try:
            for flag in found.values():
                # Flags on a device are not read. They count as finite, unless all flags should be on the host.
                if flag.item() if flag.is_cpu else self._on_host:
                    self._monitor.after_unscale(optimizer, found)
                    return found
            if self._ahead and id(optimizer) in self._ahead:
                self._guard(optimizer, found)
        except Exception as error:
            self._monitor.failed("after_unscale", error)
        return found

    def _guard(self, optimizer: Optimizer, found: dict[torch.device, Tensor]) -> None:
        """Let the device search for culprits before gradients are clipped, if it can do so without the host."""
        started = self._account.clock()
        measurer = self._monitor._measurer
        measurer.after_unscale(optimizer, self._iteration, found, deferred=False)
        self._account.spend(started)

    def stepping(self, optimizer: Optimizer) -> bool:
        """Whether `step` may be called for this optimizer."""
        at = self._at
        if self._expected[at] != id(optimizer):
            return False
        if self._asks:  # a changed rate matters if the previous update turns out to be skipped
            self._monitor._linter.stepping(optimizer, self._steps[id(optimizer)].path)
        self._at = at + 1
        return True

    def _decide_on_device(
        self, scaler: Any, optimizer: Optimizer, state: dict[str, Any], *args: Any, **kwargs: Any
    ) -> float | None:
        """Call the stock `_maybe_opt_step`, after found_inf is brought to the host."""
        state, overflowed = self._monitor.follower.decide(state)
        if overflowed:
            self._monitor.decided(optimizer, overflowed)
        elif overflowed is not None:
            self._decided += 1
        return self._decide(scaler, optimizer, state, *args, **kwargs)

    def update(self, scaler: Any) -> bool:
        """Call the stock `update`, which then only advances the growth tracker, and write or queue the record.

        Return False, with nothing done, unless all optimizers stepped, no overflow is known, and nothing else changed
        the scale.
        """
        scale, tracker = self._tensors
        try:
            if not (
                self._expected[self._at] is None
                and scaler._scale is scale
                and scaler._growth_tracker is tracker
                and (scale._version, tracker._version) == self._versions
                and scaler._growth_interval == self._interval
                and (self._on_host or self._all_decided(scaler))
            ):
                return False
        except Exception as error:
            self._monitor.failed("before_update", error)
            return False
        self._update(scaler)
        account, monitor, stream = self._account, self._monitor, self._stream
        started = account.clock()
        try:
            self._versions = scale._version, tracker._version
            self._at = self._decided = 0
            self._done += 1
            duration, cost = account.plain(started)
            if self._asks:
                self._queue(started, duration, cost)
            else:
                self._losses.clear()
                if self._ahead:
                    self._iteration.culprits.clear()
                monitor.updates += 1
                self._tracker += 1
                numbers = stream.ordinal, self._tracker, duration, cost
                stream.ordinal += 1
                stream.updating = False
                stream.put_steady(self._template, *numbers)
            if self._done == self._left or monitor._scale != self._scale:
                self.leave()
        except Exception as error:
            monitor.failed("after_update", error)
            self.leave()
        account.handed_over(started, sampled=False)
        return True

    def _all_decided(self, scaler: Any) -> bool:
        # No step would have brought found_inf to the host while a graph is captured.
        if not self._asks:
            return self._decided == len(scaler._per_optimizer_states)
        flags = None if capturing() else outcome.flags(scaler, self._steps)
        if flags is None:
            return False
        started = self._account.clock()
        self._fused.ends(flags, self._iteration)
        self._account.spend(started)
        return True

    def _queue(self, now: int, duration: float, cost: float) -> None:
        """Queue the record until the device reports what it found."""
        iteration, steps = self._iteration, self._steps
        self._begin(Iteration())
        iteration.steps = steps
        rules, moved = outcome.rules(self._scaler()), self._monitor._linter.updated(steps)
        ordinal = self._stream.ordinal
        self._fused.ended(FusedUpdate(iteration, ordinal, duration, cost, rules, moved), now)


def called(call: int) -> int:
    """The optimizer id of an entry of `Iteration.calls`."""
    return max(call, ~call)
