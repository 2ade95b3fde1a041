"""The plain gear: updates about which nothing is new take one short path, past all that looks for news.

The monitor engages it at the end of an update, and leaves it for whatever else happens: an overflow, a scale that
moves, a step out of order, any other hook. The iteration at hand goes on in the full gear, with what it has been
through. Both gears count in the same objects and write to the same spool.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from ampmon import outcome, process, wire
from ampmon.iteration import Iteration, PendingUpdate
from ampmon.outcome import Reading


if TYPE_CHECKING:
    from ampmon.monitor import Monitor

LOOK_EVERY = 64
"""One update in so many goes through the full gear, which looks at everything that may have changed."""
_WORTH_IT = 4
"""For fewer updates it is not engaged."""


class PlainGear:
    """Updates of a scaler on a CPU in which the same optimizers step by the same paths, and none is skipped.

    Each hook says whether all is as expected; where it is not, the caller goes on with the monitor's hook of that
    place, which has this gear left first. The monitor's private parts are this class's too.
    """

    __slots__ = (
        "_account",
        "_at",
        "_begun",
        "_done",
        "_explicit",
        "_first",
        "_left",
        "_monitor",
        "_optimizers",
        "_recorder",
        "_scale",
        "_scale_tensor",
        "_scaler",
        "_spent_ns",
        "_step",
        "_steps",
        "_stream",
        "_tracker",
        "_unscale",
        "_unscaled",
        "_update",
        "_version",
        "scale",
    )

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._account = monitor._account

    # -- in and out ---------------------------------------------------------------------------------

    def engage(self, scaler: Any, ended: PendingUpdate) -> None:
        """Take the coming updates, where they may be like the one that ended and nobody waits for anything in them."""
        monitor, after = self._monitor, ended.after
        if not isinstance(after, Reading) or not self._is_plain(ended, after):
            return
        optimizers = [monitor._optimizers.living(each) for each in ended.iteration.steps]
        updates = min(monitor.updates_until_due(), ended.growth_interval - after.growth_tracker - 1)
        stock = scaler._ampmon_stock()
        first = monitor._optimizers.last()
        if updates < _WORTH_IT or first is None or None in [*optimizers, *stock]:
            return
        self.scale, self._unscale, self._step, self._update = stock
        self._left = min(updates, LOOK_EVERY - 1)
        self._optimizers = [weakref.ref(each) for each in optimizers if each is not None]
        self._first = weakref.ref(first)
        self._steps = tuple(ended.iteration.steps.values())
        self._explicit = [step.path == "unscaled" for step in self._steps]
        assert monitor._recorder is not None
        self._stream, self._recorder = ended.stream, monitor._recorder
        self._scaler = weakref.ref(scaler)
        self._scale_tensor: torch.Tensor = scaler._scale
        self._version = self._scale_tensor._version
        self._scale, self._tracker = after.scale, after.growth_tracker
        self._at = self._done = self._spent_ns = 0
        self._begun = False
        """Whether an optimizer was unscaled in this iteration."""
        self._unscaled: list[torch.optim.Optimizer] = []
        """Those unscaled in this iteration ahead of their step."""
        monitor.gear = self

    def _is_plain(self, ended: PendingUpdate, after: Reading) -> bool:
        monitor, before = self._monitor, ended.before
        return (
            isinstance(before, Reading)
            and True not in before.found
            and monitor._scale == after.scale > outcome.DYING_SCALE
            and outcome.is_invertible(1 / after.scale)
            and ended.stream.idle
            and not ended.infers_skips
            and not ended.manual
            and not monitor._watches_modules
            and not monitor._linter.looking
            and not monitor._order.learning
            and not monitor._account.awaiting
        )

    def leave(self, before: Reading | None = None) -> None:
        """Give the iteration at hand to the full gear, ``before`` its update if that has returned."""
        monitor, at = self._monitor, self._at
        monitor.gear = None
        iteration = monitor._iteration = Iteration(before=before)
        scaler = self._scaler()
        stepped = list(zip(self._optimizers[:at], self._steps, strict=False))
        monitor._optimizers.turned(self._done + self._begun)
        for reference in self._optimizers:
            if (optimizer := reference()) is not None:
                monitor._linter.stepped(optimizer, self._done)
        if self._begun:
            iteration.sampling = False
        for reference, step in stepped:
            if (optimizer := reference()) is not None:
                iteration.steps[id(optimizer)] = step
                monitor._linter.stepping(optimizer, step.path)
                monitor._begun = id(optimizer)
        for optimizer in [*self._unscaled, *(each() for each, _ in stepped)]:
            if scaler is not None and optimizer is not None:
                monitor.meet(scaler, optimizer)

    # -- in the order an iteration calls them -------------------------------------------------------

    def scaling(self) -> bool:
        """Whether `scale` may be called."""
        if process.current() is not self._recorder:
            return False
        self._stream.updating = True
        self._recorder.recent = self._stream
        return True

    def unscaling(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether `unscale` may be called: an iteration that another optimizer begins may be one to be sampled."""
        if not self._begun:
            if self._first() is not optimizer:
                return False
            self._begun = True
        at = self._at
        if at == 0 or self._optimizers[at - 1]() is not optimizer:
            self._unscaled.append(optimizer)
        return True

    def unscale(
        self, scaler: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any
    ) -> dict[torch.device, torch.Tensor]:
        """The stock `_unscale_grads_`. Whatever is not finite is for the full gear."""
        try:
            found: dict[torch.device, torch.Tensor] = self._unscale(
                scaler, optimizer, *args, **kwargs
            )
        except Exception as error:
            self._monitor.raised("unscale_", error, optimizer)
            raise
        if not finite(found):
            self._monitor.after_unscale(optimizer, found)
        return found

    def stepping(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether `step` may be called for this optimizer."""
        at = self._at
        if (
            at == len(self._steps)
            or self._optimizers[at]() is not optimizer
            or (optimizer in self._unscaled) is not self._explicit[at]
        ):
            return False
        self._at = at + 1
        return True

    def step(self, scaler: Any, optimizer: torch.optim.Optimizer) -> float | None:
        """The stock `step`."""
        try:
            returned: float | None = self._step(scaler, optimizer)
        except Exception as error:
            self._monitor.raised("step", error, optimizer)
            raise
        return returned

    def updating(self, scaler: Any) -> bool:
        """Whether `update` may be called: all have stepped, nothing overflowed, and the scale is untouched."""
        started = self._account.clock()
        try:
            scale = self._scale_tensor
            if (
                self._at != len(self._steps)
                or scaler._scale is not scale
                or scale._version != self._version
            ):
                return False
            states = scaler._per_optimizer_states
            for optimizer in self._optimizers:
                if not finite(states[id(optimizer())]["found_inf_per_device"]):
                    return False
        except Exception as error:
            self._monitor.failed("before_update", error)
            return False
        self._spent_ns = self._account.clock() - started
        return True

    def update(self, scaler: Any) -> Any:
        """The stock `update`, and the record of it. A scale that has moved after all is for the full gear."""
        try:
            returned = self._update(scaler)
        except Exception as error:
            self._monitor.raised("update", error)
            raise
        account = self._account
        started = account.clock()
        try:
            tracker = scaler._growth_tracker.item()
            if tracker != self._tracker + 1 or scaler._scale.item() != self._scale:
                self.leave(Reading(self._scale, self._tracker, [False] * len(self._steps)))
                self._monitor.after_update(scaler, False)
                return returned
            self._tracker = tracker
            self._version = self._scale_tensor._version
            self._write(*account.plain(started, self._spent_ns))
        except Exception as error:
            self._monitor.failed("after_update", error)
            self.leave()
        account.handed_over(started, sampled=False)
        return returned

    def _write(self, duration: float, cost: float) -> None:
        stream = self._stream
        ordinal = stream.ordinal
        stream.ordinal = ordinal + 1
        stream.updating = False
        self._at = 0
        self._begun = False
        if self._unscaled:
            self._unscaled.clear()
        self._done += 1
        self._monitor.updates += 1
        fields = {
            "ordinal": ordinal,
            "scale": self._scale,
            "scale_after": self._scale,
            "growth_tracker": self._tracker,
            "event": "steady",
            "optimizers": self._steps,
            "duration": duration,
            "cost": cost,
        }
        self._recorder.write(stream, wire.Update, fields)
        if self._done == self._left:
            self.leave()


def finite(found: dict[torch.device, torch.Tensor]) -> bool:
    """Whether no found_inf, one for each device, says otherwise; False too where one is not on the host."""
    for flag in found.values():  # noqa: SIM110 - half the time of all() with a generator
        if not flag.is_cpu or flag.item():
            return False
    return True
