"""Records whose values are still on a device are written in order, without waiting for the device."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from ampmon import wire
from ampmon.client.iteration import (
    CULPRITS_MAX,
    Iteration,
    PendingUpdate,
    fullest,
    taken,
)
from ampmon.lints.optimizers import Schedule
from ampmon.probe import attribution, eager
from ampmon.probe.hooks import BackwardOrderLearner
from ampmon.probe.pending import Pending, on_host
from ampmon.probe.ring import Readback
from ampmon.training import outcome
from ampmon.training.outcome import Reading, ReadingOnDevice
from ampmon.training.series import Stream
from doubles import ManualClock


class Paper:
    """A sink that keeps the records written to it."""

    def __init__(self) -> None:
        self.records: list[Any] = []

    def write(
        self, stream: Stream, record: Callable[..., wire.Record], fields: dict[str, Any]
    ) -> None:
        self.records.append(record(stream=stream.name, seq=len(self.records), time=0, **fields))

    def later(self, work: Callable[[], None]) -> None:
        work()

    def idle(self) -> bool:
        return True


@dataclass
class Note:
    """A record that is ready once `arrived` is set."""

    stream: Stream
    text: str
    arrived: bool

    def ready(self) -> bool:
        return self.arrived

    def write(self) -> None:
        self.stream.event(self.text)


def test_a_record_waits_for_those_before_it() -> None:
    """A ready record waits behind one that is not ready; both are written in the order of submission."""
    paper = Paper()
    stream = Stream(paper, "scaler")
    slow = Note(stream, "slow", arrived=False)
    quick = Note(stream, "quick", arrived=True)
    stream.submit(slow.ready, slow.write)
    stream.submit(quick.ready, quick.write)
    assert paper.records == []
    slow.arrived = True
    stream.drain()
    assert [record.kind for record in paper.records] == ["slow", "quick"]


def test_the_end_waits_for_a_device_but_not_for_ever() -> None:
    """`close` writes what arrives by its deadline, continues after a record that fails, and counts the lost records."""

    class Late(Note):
        """Becomes ready after 20 queries."""

        asked = 0

        def ready(self) -> bool:
            self.asked += 1
            return self.asked > 20

    class Never(Note):
        """Never becomes ready; each query takes 0.1 s."""

        def ready(self) -> bool:
            clock.advance(0.1)
            return False

    class Broken(Note):
        def write(self) -> None:
            raise RuntimeError("no")

    paper, clock = Paper(), ManualClock(0.0)
    stream = Stream(paper, "scaler")
    for record in (
        Late(stream, "late", arrived=False),
        Broken(stream, "broken", arrived=True),
        Note(stream, "quick", arrived=True),
        Never(stream, "never", arrived=False),
    ):
        stream.submit(record.ready, record.write, records=lambda: 3)
    assert stream.close(1.0, clock=clock) == 6
    assert [record.kind for record in paper.records] == ["late", "quick"]


def test_the_end_gives_a_record_time_to_request_its_values() -> None:
    """A record whose values are requested late is written, even if the time to wait for a device is zero."""
    paper, clock = Paper(), ManualClock(0.0)
    stream = Stream(paper, "scaler")
    note = Note(stream, "late", arrived=False)

    def ready() -> bool:
        clock.advance(0.01)
        return clock() > 0.03

    stream.submit(ready, note.write)
    assert stream.close(0.0, clock=clock) == 0
    assert [record.kind for record in paper.records] == ["late"]


def test_a_record_whose_values_cannot_be_requested_stays() -> None:
    """If asking whether a record is ready raises, the record is written or counted later, not lost."""
    paper = Paper()
    stream = Stream(paper, "scaler")
    note = Note(stream, "kept", arrived=True)
    fails = iter([True])

    def ready() -> bool:
        if next(fails, False):
            raise RuntimeError
        return True

    with pytest.raises(RuntimeError):
        stream.submit(ready, note.write)
    stream.drain()
    assert [record.kind for record in paper.records] == ["kept"]


def on_device(scale: float, growth_tracker: int, *found: float) -> ReadingOnDevice:
    flags = [[torch.tensor(flag)] for flag in found]
    return ReadingOnDevice(torch.tensor(scale), torch.tensor(growth_tracker), flags)


def test_a_reading_from_a_device_is_exact() -> None:
    """A device reading keeps scale, tracker (beyond fp32's integers) and overflow flags as they were when read."""
    scale, tracker = torch.tensor(2.0**-20), torch.tensor(2**24 + 1, dtype=torch.int32)
    flags = [torch.tensor(value) for value in (0.0, 1.0, 0.0)]
    reading = ReadingOnDevice(scale, tracker, [flags[:2], [], flags[2:]])
    for tensor in (scale, tracker, *flags):
        tensor.fill_(7)
    arrived = reading.result()
    assert (arrived.scale, arrived.growth_tracker) == (2.0**-20, 2**24 + 1)
    assert arrived.found == [True, False, False]


def test_a_ready_reading_has_left_its_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading that is ready needs no buffer any more: two threads may ask for its result at once."""
    reading = on_device(4.0, 11, 1.0)
    assert reading.ready()
    monkeypatch.delattr(Readback, "result")
    assert reading.result().scale == 4.0


def pending(**fields: Any) -> PendingUpdate:
    """Return a pending update with defaults for the fields that are not given."""
    return PendingUpdate(
        manual=False,
        growth_interval=2000,
        infers_skips=False,
        order=BackwardOrderLearner(list),
        known={},
        rates_moved=False,
        schedule=Schedule(),
        **fields,
    )


def test_an_update_from_a_device_says_what_one_on_the_host_says() -> None:
    """Readings, statistics and culprits from packed device copies make the same record as host values."""
    gradients = [
        torch.tensor([1.0, math.inf]),
        torch.tensor([2.0**-20, 0.0]),
        torch.tensor([math.nan]),
    ]
    paper = Paper()
    stream = Stream(paper, "scaler")
    flags = Readback(attribution.flag(gradients))
    iteration = Iteration(
        steps={7: taken("AdamW", "fused")},
        culprits={
            (7, torch.device("cpu")): [
                Pending(lambda: attribution.from_flags(flags.result(), [0, 1, 2]), flags)
            ]
        },
        samples=[eager.fetch(eager.launch(gradients), [0, 1, 2])],
        before=on_device(4.0, 11, 1.0),
    )
    calls: list[tuple[Any, ...]] = []
    pending(
        stream=stream,
        ordinal=3,
        iteration=iteration,
        after=on_device(2.0, 0),
        done=lambda *said: calls.append(said),
    ).submit()
    (update,) = paper.records
    assert (update.scale, update.scale_after, update.event) == (4.0, 2.0, "backoff")
    (step,) = update.optimizers
    assert [(culprit.parameter, culprit.inf, culprit.nan) for culprit in step.culprits] == [
        (2, None, None),
        (0, None, 0),
    ]
    ((steps, skips, before, after, sample, lost),) = calls
    assert (steps, skips, before.scale, after.scale) == (update.optimizers, 1, 4.0, 2.0)
    assert sample == update.gradients
    assert lost is None


def test_a_long_list_of_culprits_is_cut_and_counted() -> None:
    """A record names at most 64 culprits and gives their total number."""
    counted = [wire.Culprit(index, 1, 0) for index in range(100)]
    paper = Paper()
    stream = Stream(paper, "scaler")
    iteration = Iteration(
        steps={7: taken("SGD", "plain")},
        culprits={(7, torch.device("cpu")): [on_host(counted)]},
        before=Reading(4.0, 0, [True]),
    )
    pending(
        stream=stream,
        ordinal=0,
        iteration=iteration,
        after=Reading(2.0, 0, []),
        done=print,
    ).submit()
    step = paper.records[0].optimizers[0]
    assert len(step.culprits) == CULPRITS_MAX
    assert step.culprit_parameters == 100


@pytest.mark.parametrize(
    ("before", "after", "manual", "event"),
    [
        ((8.0, 3, [False]), (8.0, 4), False, "steady"),
        ((8.0, 4, [False]), (16.0, 0), False, "grow"),
        ((2.0**127, 4, [False]), (2.0**127, 0), False, "grow_capped"),
        ((8.0, 4, [True, False]), (4.0, 0), False, "backoff"),
        ((8.0, 4, [True]), (8.0, 4), True, "manual_set"),
        ((2.0**-127, 0, [True]), (2.0**-128, 0), False, "dead"),
        ((0.0, 5, [False]), (0.0, 6), False, "dead"),
        ((8.0, 5, [False]), (math.nan, 5), True, "dead"),
    ],
)
def test_why_the_scale_moved(before: Any, after: Any, manual: bool, event: str) -> None:
    """Each way for a scale to move has its event; `dead` takes precedence."""
    assert outcome.why(Reading(*before), Reading(*after, []), manual, growth_interval=5) == event


def test_the_fullest_device_gives_the_memory_peak() -> None:
    """The memory peak is the largest peak of any device, over all its pools together."""

    def device(peak: int) -> dict[str, Any]:
        counters = {"current": 7, "peak": peak, "allocated": 2**60, "freed": 2**59}
        return {"allocated_bytes": {"all": counters, "large_pool": {"peak": peak - 1}}}

    assert fullest([device(10)]) == 10
    assert fullest([device(10), device(2**40), device(0)]) == 2**40
