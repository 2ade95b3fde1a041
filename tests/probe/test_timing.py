"""Device time is measured by reused pairs of events and charged as a cost once it is known."""

from __future__ import annotations

import pytest
import torch

from ampmon.probe.budget import Budget
from ampmon.probe.timing import Account, Baseline, DeviceTimer, TimedSpan
from doubles import ManualClock
from probe.scripted import Device


CPU = torch.device("cpu")
MS = 1000.0


class Reports(list[tuple[str, Exception]]):
    def __call__(self, where: str, error: Exception) -> None:
        self.append((where, error))


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def reports() -> Reports:
    return Reports()


@pytest.fixture
def timer(device: Device, reports: Reports) -> DeviceTimer:
    """A timer of a scripted device, which poses as a CPU."""
    return DeviceTimer(reports, event=device.event, timed=bool)


def work(timer: DeviceTimer, device: Device, took: float, **kind: Baseline) -> list[TimedSpan]:
    """Return the spans of an update with one piece of work of this many ms."""
    spans: list[TimedSpan] = []
    span = timer.begin([CPU])
    device.now += took
    timer.end(span, spans, **kind)
    return spans


def test_time_is_stated_when_it_is_known(timer: DeviceTimer, device: Device) -> None:
    """An update's time is returned once, in order, after the device has passed both of its events."""
    device.done = -1.0
    timer.submit(work(timer, device, 2.0), sampled=True)
    timer.submit(work(timer, device, 5.0), sampled=False)
    assert timer.finished() == []
    device.done = 0.0
    assert timer.finished() == []
    device.done = 2.0
    assert timer.finished() == [(2.0 * MS, True)]
    device.done = 7.0
    assert timer.finished() == [(5.0 * MS, False)]
    assert timer.finished() == []


def test_pieces_of_an_update_are_added(timer: DeviceTimer, device: Device) -> None:
    """An update's time is the sum of its pieces, without the time between them."""
    spans = work(timer, device, 2.0)
    device.now += 100.0
    spans += work(timer, device, 3.0)
    timer.submit(spans, sampled=True)
    assert timer.finished() == [(5.0 * MS, True)]


def test_events_are_used_again(timer: DeviceTimer, device: Device) -> None:
    """A hundred updates, each read before the next, use one pair of events."""
    for _ in range(100):
        timer.submit(work(timer, device, 1.0), sampled=True)
        assert timer.finished() == [(1.0 * MS, True)]
    assert len(device.made) == 2


def test_a_stuck_device_is_not_fed(timer: DeviceTimer, device: Device) -> None:
    """On a stuck device at most 64 updates wait; timing resumes once the device goes on."""
    device.done = -1.0
    for _ in range(200):
        timer.submit(work(timer, device, 1.0), sampled=True)
    assert len(device.made) == 2 * 64
    device.done = float("inf")
    assert len(timer.finished()) == 64
    timer.submit(work(timer, device, 1.0), sampled=True)
    assert len(timer.finished()) == 1


def test_a_pass_in_the_place_of_torchs_counts_over_it(timer: DeviceTimer, device: Device) -> None:
    """A replacement of torch's pass counts in full while torch's time is unknown, then by its excess, at least 0."""
    baseline = Baseline()
    timer.submit(work(timer, device, 6.0, over=baseline), sampled=True)
    for took in (90.0, 5.0, 5.5):  # the first is cold
        timer.submit(work(timer, device, took, of=baseline), sampled=False)
    assert timer.finished() == [(6.0 * MS, True)]  # torch's own pass is no cost
    timer.submit(work(timer, device, 6.0, over=baseline), sampled=True)
    timer.submit(work(timer, device, 4.0, over=baseline), sampled=True)
    assert timer.finished() == [(pytest.approx(0.5 * MS), True), (0.0, True)]
    assert baseline.begun == 3


def test_a_device_that_cannot_be_timed_is_reported_once(reports: Reports) -> None:
    """If no event can be made, the timer raises nothing, reports once and stops."""

    def broken(device: torch.device) -> Device:
        raise RuntimeError("no events here")

    timer = DeviceTimer(reports, event=broken, timed=bool)
    assert timer.begin([CPU]) is None
    assert timer.begin([CPU]) is None
    timer.end(None, [])
    assert [where for where, _ in reports] == ["timing the device"]


def test_an_error_while_asking_is_reported(
    timer: DeviceTimer, device: Device, reports: Reports
) -> None:
    """An event that fails when queried, as after a device error, ends the timing and raises nothing."""
    timer.submit(work(timer, device, 1.0), sampled=True)
    device.made[1].at = None
    device.made[1].query = lambda: True
    assert timer.finished() == []
    assert len(reports) == 1
    assert timer.begin([CPU]) is None


def test_a_cpu_is_not_timed_by_events(device: Device, reports: Reports) -> None:
    """Only CUDA devices are timed by events; a CPU is not."""
    timer = DeviceTimer(reports, event=device.event)
    assert timer.begin([CPU]) is None
    assert device.made == []


def test_the_account_adds_device_time_when_it_is_known(timer: DeviceTimer, device: Device) -> None:
    """A sample's device time counts in the record of the update in which it becomes known, and in the overhead."""
    account = Account(Budget("auto", 0.01), timer)
    device.done = -1.0
    first = account.settle(None, 0.0, work(timer, device, 50.0), sampled=True)
    assert first < 50.0 * MS
    device.done = float("inf")
    second = account.settle(1000 * MS, 7.0 * MS, [], sampled=False)
    assert second == pytest.approx(57.0 * MS, rel=0.01)
    assert account.overhead == pytest.approx(0.057, rel=0.01)


def test_the_account_counts_the_clock(timer: DeviceTimer) -> None:
    """Time spent since the last update, and on handing over its record, counts once, in this update's cost."""
    clock = ManualClock(0.0)
    account = Account(Budget("auto", 0.01), timer, clock=lambda: round(clock() * 1e9))

    def begun_before(ms: float) -> int:
        started = account.clock()
        clock.advance(ms / 1000)
        return started

    account.spend(begun_before(3))
    assert account.settle(None, 0.0, [], sampled=True) == 3 * MS
    account.handed_over(begun_before(4), sampled=True)
    account.spend(begun_before(2))
    assert account.settle(100 * MS, 0.0, [], sampled=False) == 6 * MS
    assert account.settle(100 * MS, 0.0, [], sampled=False) == 0.0
    assert account.overhead == 0.03


def test_the_account_knows_the_laps(timer: DeviceTimer) -> None:
    """The first update of a series has no duration; the next has its distance in us."""
    account = Account(Budget("auto", 0.01), timer)
    assert account.lap(5_000) is None
    assert account.lap(9_500) == 4.5
    account.restart()
    assert account.lap(20_000) is None
