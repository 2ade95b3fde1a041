"""The plain gear: updates about which nothing is new take one short path, past all that looks for news.

The monitor engages it at the end of an update, and leaves it for whatever else happens: an overflow, a scale that
moves, a step out of order, any other hook. The iteration at hand goes on in the full gear, with what it has been
through. Both gears count in the same objects and write to the same spool.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.amp.grad_scaler import GradScaler

from ampmon import outcome, process
from ampmon.iteration import Iteration, PendingUpdate
from ampmon.mirror import stamp
from ampmon.outcome import Reading
from ampmon.probe.graphs import capturing


if TYPE_CHECKING:
    from ampmon.monitor import Monitor

LOOK_EVERY = 64
"""One update in so many goes through the full gear, which looks at everything that may have changed."""
_WORTH_IT = 4
"""For fewer updates it is not engaged."""
_TORCHS = GradScaler.__module__


class PlainGear:
    """Updates of a scaler whose state the host knows: the same optimizers step by the same paths, and none is skipped.

    Each hook says whether all is as expected; where it is not, the caller goes on with the monitor's hook of that
    place, which has this gear left first. The monitor's private parts are this class's too.
    """

    __slots__ = (
        "_account",
        "_at",
        "_begun",
        "_decide",
        "_decided",
        "_done",
        "_explicit",
        "_first",
        "_interval",
        "_iteration",
        "_left",
        "_monitor",
        "_on_host",
        "_optimizers",
        "_recorder",
        "_scale",
        "_scaler",
        "_stamp",
        "_step",
        "_steps",
        "_stream",
        "_tensors",
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
        if not isinstance(after, Reading) or not self._is_plain(scaler, ended, after):
            return
        names = monitor._optimizers
        optimizers = [names.living(each) for each in ended.iteration.steps]
        updates = ended.growth_interval - after.growth_tracker - 1
        if monitor._samples_here():
            updates = min(updates, monitor._budget.until_due(names.coming()))
        stock = scaler._ampmon_stock()
        first = names.last()
        if updates < _WORTH_IT or first is None or None in [*optimizers, *stock]:
            return
        self.scale, self._unscale, self._step, self._decide, self._update = stock
        self._left = min(updates, LOOK_EVERY - 1)
        self._optimizers = [weakref.ref(each) for each in optimizers if each is not None]
        self._first = weakref.ref(first)
        self._steps = tuple(ended.iteration.steps.values())
        self._explicit = [step.path == "unscaled" for step in self._steps]
        assert monitor._recorder is not None
        self._stream, self._recorder = ended.stream, monitor._recorder
        self._scaler = weakref.ref(scaler)
        self._on_host = scaler._scale.is_cpu
        self._tensors = scaler._scale, scaler._growth_tracker
        """Those stamped: no other may have their ids."""
        self._stamp, self._version = stamp(scaler), scaler._scale._version
        self._interval = scaler._growth_interval
        self._scale, self._tracker = after.scale, after.growth_tracker
        self._at = self._decided = self._done = 0
        self._begun = False
        """Whether an optimizer was unscaled in this iteration."""
        self._unscaled: list[torch.optim.Optimizer] = []
        """Optimizers whose `unscale_` was called in this iteration ahead of their step."""
        self._iteration = Iteration()
        """Holds the culprits that a device finds; the full gear goes on with it."""
        monitor.gear = self

    def _is_plain(self, scaler: Any, ended: PendingUpdate, after: Reading) -> bool:
        monitor, before = self._monitor, ended.before
        if ended.infers_skips or not isinstance(before, Reading):
            return False
        return (
            # On a device the host hears of each step, or `before` were no Reading. On a CPU `_unscale_grads_` must be
            # all that decides what is found.
            not (scaler._scale.is_cpu and outcome.maker(type(scaler), "unscale_") != _TORCHS)
            and True not in before.found
            and monitor._scale == after.scale > outcome.DYING_SCALE
            and outcome.is_invertible(1 / after.scale)
            and ended.stream.idle
            and not ended.manual
            and not monitor._watches_modules
            and not monitor._linter.looking
            and not monitor._order.learning
            and not monitor._account.awaiting
        )

    def leave(self, before: Reading | None = None) -> None:
        """Give the iteration at hand to the full gear, ``before`` its update if that has returned."""
        monitor = self._monitor
        monitor.gear = None
        if not self._on_host:
            state = self._scale, self._tracker
            monitor.follower.mirror.resume(state, self._stamp, self._tensors, self._done)
        monitor._optimizers.turned(self._done + self._begun)
        for reference in self._optimizers:
            if (optimizer := reference()) is not None:
                monitor._linter.stepped(optimizer, self._done)
        iteration = monitor._iteration = self._iteration
        iteration.before = before
        iteration.sampling = False if self._begun else None
        self._tell_steps(iteration)

    def _tell_steps(self, iteration: Iteration) -> None:
        """Have the full gear know what was unscaled and stepped in the iteration at hand."""
        monitor, scaler = self._monitor, self._scaler()
        met = list(self._unscaled)
        for place, (reference, step) in enumerate(zip(self._optimizers, self._steps, strict=True)):
            optimizer = reference()
            if place < self._at and optimizer is not None:
                iteration.steps[id(optimizer)] = step
                if place < self._decided:
                    iteration.found[id(optimizer)] = False
                monitor._linter.stepping(optimizer, step.path)
                monitor._begun = id(optimizer)
                met.append(optimizer)
        for optimizer in met:
            if scaler is not None:
                monitor.meet(scaler, optimizer)

    # -- in the order an iteration calls them -------------------------------------------------------

    def scaling(self) -> bool:
        """Whether `scale` may be called."""
        if process.current() is not self._recorder or (not self._on_host and capturing()):
            return False
        self._stream.updating = True
        self._recorder.recent = self._stream
        return True

    def unscaling(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether `unscale` may be called: an iteration that another optimizer begins may be one to be sampled."""
        at = self._at
        ahead = at == 0 or self._optimizers[at - 1]() is not optimizer
        if ahead and not self._on_host and capturing():
            return False
        if not self._begun:
            if self._first() is not optimizer:
                return False
            self._begun = True
        if ahead:
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
            self._monitor.raised(scaler, "unscale_", error, optimizer)
            raise
        if not finite(found, self._on_host):
            self._monitor.after_unscale(optimizer, found)
        elif self._unscaled and not self._on_host and optimizer in self._unscaled:
            self._guard(optimizer, found)
        return found

    def _guard(
        self, optimizer: torch.optim.Optimizer, found: dict[torch.device, torch.Tensor]
    ) -> None:
        """Have the device look for culprits before gradients are clipped, where it can do so by itself."""
        started = self._account.clock()
        try:
            measurer = self._monitor._measurer
            measurer.after_unscale(optimizer, self._iteration, found, told=False)
        except Exception as error:
            self._monitor.failed("after_unscale", error)
        self._account.spend(started)

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

    def step(
        self, scaler: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any
    ) -> float | None:
        """The stock `step`. Accelerate gives it a closure, which is None."""
        try:
            returned: float | None = self._step(scaler, optimizer, *args, **kwargs)
        except Exception as error:
            self._monitor.raised(scaler, "step", error, optimizer)
            raise
        return returned

    def decide(
        self,
        scaler: Any,
        optimizer: torch.optim.Optimizer,
        state: dict[str, Any],
        *args: Any,
        **kwargs: Any,
    ) -> float | None:
        """The stock `_maybe_opt_step`."""
        if not self._on_host:
            state = self._monitor.deciding(optimizer, state)
        decided: float | None = self._decide(scaler, optimizer, state, *args, **kwargs)
        return decided

    def decided(self) -> None:
        """`step` has brought to the host that nothing overflowed on a device."""
        self._decided += 1

    def updating(self, scaler: Any) -> bool:
        """Whether `update` may be called: all have stepped, nothing overflowed, and the scale is untouched."""
        try:
            if self._at != len(self._steps):
                return False
            if self._on_host:
                scale = self._tensors[0]
                return scaler._scale is scale and scale._version == self._version
            return (
                self._decided == len(scaler._per_optimizer_states)
                and stamp(scaler) == self._stamp
                and scaler._growth_interval == self._interval
                and not capturing()
            )
        except Exception as error:
            self._monitor.failed("before_update", error)
            return False

    def update(self, scaler: Any) -> Any:
        """The stock `update`, and the record of it. A scale that has moved after all is for the full gear."""
        try:
            returned = self._update(scaler)
        except Exception as error:
            self._monitor.raised(scaler, "update", error)
            raise
        account = self._account
        started = account.clock()
        try:
            if not self._on_host:
                self._stamp = stamp(scaler)
            elif (
                scaler._growth_tracker.item() == self._tracker + 1
                and scaler._scale.item() == self._scale
            ):
                self._version = scaler._scale._version
            else:
                self.leave(Reading(self._scale, self._tracker, [False] * len(self._steps)))
                self._monitor.after_update(scaler, False)
                return returned
            self._tracker += 1
            duration, cost = account.plain(started)
            stream, ordinal = self._stream, self._stream.ordinal
            stream.ordinal = ordinal + 1
            stream.updating = False
            self._at = self._decided = 0
            self._begun = False
            if self._unscaled:
                self._unscaled.clear()
                self._iteration.culprits.clear()
            self._done += 1
            self._monitor.updates += 1
            self._recorder.write_steady(
                stream, ordinal, self._scale, self._tracker, self._steps, duration, cost
            )
            if self._done == self._left:
                self.leave()
        except Exception as error:
            self._monitor.failed("after_update", error)
            self.leave()
        account.handed_over(started, sampled=False)
        return returned


def finite(found: dict[torch.device, torch.Tensor], on_host: bool) -> bool:
    """Whether no found_inf, one for each device, says otherwise.

    Those on a device are not read: they stand for yes, or, where all should be ``on_host``, for no.
    """
    for flag in found.values():  # noqa: SIM110 - half the time of all() with a generator
        if flag.item() if flag.is_cpu else on_host:
            return False
    return True
