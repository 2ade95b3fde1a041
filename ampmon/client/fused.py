"""Updates of fused optimizers in the plain gear: several share one reading of the scaler's state.

The step of a fused optimizer brings nothing to the host. The growth tracker counts the updates since the last skip or
growth, so one reading shows whether there was any. After a skip or a growth, each update's found_inf is read too. It
stays on the device until then.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from ampmon.client.following import FollowedReading, ReadingBefore, Tensors, nothing
from ampmon.client.iteration import Iteration, PendingUpdate
from ampmon.lints.optimizers import Schedule
from ampmon.probe.accelerator import capturing, is_asynchronous
from ampmon.probe.attribution import LOSSES_MAX, join
from ampmon.probe.ring import JoinedReadback, Readback
from ampmon.training.outcome import AnyReading, Reading, Rules
from ampmon.training.series import Stream
from ampmon.wire.template import SteadyUpdates


if TYPE_CHECKING:
    from ampmon.client.monitor import Monitor

UPDATES_MAX = 8
WINDOW_NS = 20_000_000
"""The state is read if the next update would probably end later than this after the first one."""


@dataclass(slots=True)
class FusedUpdate:
    """An update whose optimizers are fused, apart from what it found. ``duration`` and ``cost`` are in us."""

    iteration: Iteration
    ordinal: int
    duration: float
    cost: float
    rules: Rules
    rates_moved: bool


class FusedUpdates:
    """Queues the records of updates whose optimizers are fused. ``template`` encodes those that turn out steady.

    ``state`` are the scaler's scale and growth tracker. ``last`` is their reading after the newest update.
    """

    def __init__(
        self,
        monitor: Monitor,
        stream: Stream,
        template: SteadyUpdates,
        state: Tensors,
        last: AnyReading,
    ) -> None:
        self._monitor, self._stream, self._template = monitor, stream, template
        self._state, self.last = state, last
        self._schedule: Schedule = monitor._linter.schedule
        self._batch: FusedBatch | None = None
        self._flags: list[torch.Tensor] = []
        """The found_inf tensors of the optimizers that step in the current update."""
        self._before: ReadingBefore
        """The state before an update outside of a batch, with what it found."""

    def ends(self, flags: list[torch.Tensor], iteration: Iteration) -> None:
        """Called before `update()`, which forgets found_inf. Copies losses with the batch if it has room."""
        self._flags, (first, *others), losses = flags, flags, iteration.losses
        # With several optimizers, `update()` adds the flags up in the first.
        if others or len(losses) > LOSSES_MAX or not is_asynchronous(first.device):
            self.close()
            self._before = ReadingBefore(self.last, Readback(first, behind=others))
            return
        if self._batch is None or not self._batch.room(len(losses)):
            self.close()
            self._batch = FusedBatch(self, self._state, self.last)
        iteration.loss = join(losses, self._batch.losses, first.device)

    def ended(self, update: FusedUpdate, now: int) -> None:
        """Called after `update()`, at the time ``now`` in ns, to queue the record."""
        self._monitor._measurer.ask_losses(update.iteration, infers=False)
        batch, stream = self._batch, self._stream
        if batch is None:
            before = self._before
            after = self.last = FollowedReading(before, update.rules)
            self.pending(update, before, after).submit()
            return
        stream.ordinal += 1
        stream.updating = False
        if batch.add(update, self._flags[0], now):
            self.close()
        if self.last is batch:
            stream.drain()
        else:
            self.last = batch
            stream.submit(batch.ready, batch.write, records=batch.__len__)

    def close(self) -> None:
        """Let no other update join those that wait. Does not raise."""
        batch, self._batch = self._batch, None
        try:
            # A graph that is being captured must not get the copy. `ready` requests it later.
            if batch is not None and not capturing():
                batch.close()
        except Exception as error:
            self._monitor.failed("reading the scale", error)

    def pending(self, update: FusedUpdate, before: AnyReading, after: AnyReading) -> PendingUpdate:
        """The record of an update between two readings that may be on their way."""
        update.iteration.before = before
        return PendingUpdate(
            stream=self._stream,
            ordinal=update.ordinal,
            iteration=update.iteration,
            after=after,
            growth_interval=update.rules[2],
            order=self._monitor._order,
            known={"duration": update.duration, "cost": update.cost},
            rates_moved=update.rates_moved,
            schedule=self._schedule,
            done=partial(self._monitor._written, nothing, update.ordinal),
            template=self._template,
        )

    def write(self, updates: Sequence[FusedUpdate], after: Reading) -> None:
        """Write the records of updates that found nothing, and left this state."""
        tracker, template = after.growth_tracker - len(updates), self._template
        for update in updates:
            before, tracker = tracker, tracker + 1
            if self._schedule.skipped or template.scale != after.scale:
                states = (Reading(after.scale, each, [False]) for each in (before, tracker))
                self.pending(update, *states).write()
                continue
            numbers = update.ordinal, tracker, update.duration, update.cost
            self._stream.put_steady(template, *numbers)
            done = self._monitor._written
            done(nothing, update.ordinal, template.steps, 0, after, after, None, None)


class FusedBatch:
    """Updates in a row, and the state after them as an `AnyReading`.

    ``state`` are the scaler's scale and growth tracker, and ``last`` is their reading before the first update. Only the
    training thread may enqueue work on a device, so another thread may call only `result` and `write`.
    """

    def __init__(self, records: FusedUpdates, state: Tensors, last: AnyReading) -> None:
        self._records, self._state = records, state
        self._last: AnyReading | None = last
        """None once the state has been compared with it."""
        self._until = time.perf_counter_ns() + WINDOW_NS
        self.losses = JoinedReadback(state[0].device)
        """The losses, and then the state."""
        self._updates: list[FusedUpdate] = []
        self._flags: list[torch.Tensor] = []
        self._after: Reading | None = None
        """The state, once it has shown that nothing was found."""
        self._unlike: list[PendingUpdate] = []
        """The updates, if it has not."""

    def __len__(self) -> int:
        return len(self._updates)

    def room(self, losses: int) -> bool:
        """Whether it takes another update, with this number of losses."""
        return len(self) < UPDATES_MAX and self.losses.room >= losses + len(self._state)

    def add(self, update: FusedUpdate, flag: torch.Tensor, now: int) -> bool:
        """Add an update that ended at the time ``now``, and its found_inf. Return whether `close` is due."""
        self._updates.append(update)
        self._flags.append(flag)
        return len(self) == UPDATES_MAX or now + 1000 * update.duration >= self._until

    def close(self) -> None:
        """Take no other update, and request the state."""
        if not self.losses.ended:
            self.losses.end(*self._state)

    def ready(self) -> bool:
        """Whether the records can be written. Requests what they need, but does not wait."""
        if not self.losses.ended and time.perf_counter_ns() >= self._until:
            self.close()
        if self._last is not None:
            if not (self.losses.ready() and self._last.ready()):
                return False
            self._compare(self._last)
        return all(each.ready() for each in self._unlike)

    def result(self) -> Reading:
        """Return the state after the newest update. Call it once `ready` is True."""
        return self._after or self._unlike[-1].after.result()

    def write(self) -> None:
        """Write the records. Call it once `ready` is True."""
        if self._after is not None:
            self._records.write(self._updates, self._after)
        for each in self._unlike:
            each.write()

    def _compare(self, last: AnyReading) -> None:
        """Compare the state with the one before, or else request each update's found_inf."""
        *_, scale, _ = self.losses.values()
        tracker, before = self.losses.bits[-1], last.result()
        if scale == before.scale and tracker == before.growth_tracker + len(self):
            self._after = Reading(scale, tracker, [])
        else:
            unlike = []
            for update, flag in zip(self._updates, self._flags, strict=True):
                found = ReadingBefore(last, Readback(flag))
                last = FollowedReading(found, update.rules)
                unlike.append(self._records.pending(update, found, last))
            self._unlike = unlike
        self._last = None  # not before, so that the next call tries again after an error
