"""What tests on the emulated device rely on. test_device.py runs this in its own process."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
from collections.abc import Callable

import pytest
import torch

from device.emulated import Device
from device.place import PLACE, at_rest


__all__ = ["at_rest"]  # a fixture


def in_child(work: Callable[[], object]) -> int:
    """Run `work` in a forked child; return its exit code, minus its signal, or 7 if torch raised."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        faulthandler.disable()
        os.close(2)  # an abort would print its reason
        try:
            work()
        except RuntimeError:
            os._exit(7)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_operators_are_enqueued(emulated: Device) -> None:
    """Behind a paused device operators, views and copies are enqueued without a wait and give the CPU's values."""
    host = torch.arange(12.0).reshape(3, 4)
    start = host.to(PLACE)
    emulated.forget()
    with emulated.paused():
        made = torch.nn.functional.gelu((start.t() @ start)[1:].half() * 0.01).sum(0)
        assert emulated.waits() == []
    expected = torch.nn.functional.gelu((host.t() @ host)[1:].half() * 0.01).sum(0)
    assert torch.equal(made.cpu(), expected)


@pytest.mark.parametrize(
    ("waiting", "reported"),
    [
        (torch.Tensor.item, "read a value"),
        (torch.Tensor.cpu, "copy to the host"),
        (torch.nonzero, "aten::nonzero"),
        (
            lambda tensor: torch.empty(()).copy_(tensor, non_blocking=True),
            "copy to pageable memory",
        ),
        (lambda tensor: torch.ones(()).to(tensor.device), "copy from pageable memory"),
        (lambda tensor: torch.accelerator.synchronize(), "synchronize the device"),
    ],
)
def test_waits_are_counted(
    emulated: Device, waiting: Callable[[torch.Tensor], object], reported: str
) -> None:
    """Each way to wait for the device is counted, and raises in strict mode or while the device is paused."""
    tensor = torch.full((), 2.0, device=PLACE)
    waiting(tensor)
    with emulated.strict(), pytest.raises(RuntimeError, match="would wait"):
        waiting(tensor)
    with emulated.paused(), pytest.raises(RuntimeError, match="paused"):
        waiting(tensor)
    assert emulated.waits() == [reported] * 3


def test_copies_of_pinned_memory_happen_when_they_run(emulated: Device) -> None:
    """Copies read and write pinned memory at their turn in the stream, and keep it alive until then."""
    here = torch.zeros(3, pin_memory=True)
    there = torch.ones(3, device=PLACE)
    sent = torch.zeros(3, pin_memory=True)
    with emulated.paused():
        here.copy_(there, non_blocking=True)
        arrived = torch.Event(PLACE)
        arrived.record()
        came = sent.to(PLACE, non_blocking=True)
        sent.fill_(5.0)
        gone = torch.full((3,), 7.0).pin_memory()
        came_late = gone.to(PLACE, non_blocking=True)
        del gone
        torch.empty(3, pin_memory=True).fill_(0.0)
        assert here.tolist() == [0.0] * 3
        assert not arrived.query()
    arrived.synchronize()
    assert here.tolist() == [1.0] * 3
    assert came.tolist() == [5.0] * 3
    assert came_late.tolist() == [7.0] * 3
    assert emulated.waits()[0] == "synchronize an event"


def test_freed_memory_is_used_again_at_once(emulated: Device) -> None:
    """A freed block is poisoned and reused at once on its stream, unless another stream still uses it."""
    address = (first := torch.ones(8, device=PLACE)).data_ptr()
    del first
    second = torch.empty(8, device=PLACE)
    assert second.data_ptr() == address
    assert second.lt(-1e30).all().item()
    other = torch.Stream(PLACE)
    with emulated.paused():
        second.record_stream(other)
        with other:
            torch.empty(4, device=PLACE)
            busy = second + 1
        del second
        assert torch.empty(8, device=PLACE).data_ptr() != address
    assert busy.data_ptr() != address


def test_streams_are_in_no_order_but_by_events(emulated: Device) -> None:
    """Work behind `wait_event` runs after the event; an event that was never recorded is not waited for."""
    side = torch.Stream(PLACE)
    mark, begun = torch.Event(PLACE, enable_timing=True), torch.Event(PLACE, enable_timing=True)
    tensor = torch.zeros(1, device=PLACE)
    torch.accelerator.synchronize()
    with emulated.paused():
        side.wait_event(begun)  # never recorded: no wait
        begun.record()
        tensor.add_(1)
        mark.record()
        side.wait_event(mark)
        with side:
            doubled = tensor * 2
    side.synchronize()
    with side:
        assert doubled.item() == 2.0
    assert begun.elapsed_time(mark) >= 0


def test_errors_come_later(emulated: Device) -> None:
    """An error on the device is raised where the host next waits for it."""
    table = torch.ones(2, device=PLACE)
    found = table[torch.tensor([5]).to(PLACE)]
    with pytest.raises(RuntimeError, match="out of bounds"):
        found.cpu()


def test_the_host_cannot_read_its_memory(emulated: Device) -> None:
    """A host read of a tensor's address ends the process."""
    tensor = torch.ones(3, device=PLACE)
    assert in_child(lambda: ctypes.string_at(tensor.data_ptr(), 4)) == -signal.SIGSEGV


def test_nothing_works_in_a_forked_child(emulated: Device) -> None:
    """In a forked child an operator raises, and destroying an event or pinned memory that copies used aborts it."""
    tensor, pinned, event = torch.ones(3, device=PLACE), torch.ones(3, pin_memory=True), []
    tensor.copy_(pinned, non_blocking=True)
    event.append(torch.Event(PLACE))
    event[0].record()
    held = [pinned]
    del pinned
    assert in_child(lambda: tensor + 1) == 7
    assert in_child(event.clear) == -signal.SIGABRT
    assert in_child(held.clear) == -signal.SIGABRT
    assert in_child(lambda: None) == 0


def test_a_capture_runs_nothing(emulated: Device) -> None:
    """Captured operators run only on replay; pinning memory, querying events and waiting are violations."""
    tensor, event = torch.ones(2, device=PLACE), torch.Event(PLACE)
    event.record()
    with emulated.capture() as graph:
        assert torch.accelerator.current_stream().is_capturing()
        doubled = tensor * 2
        for broken in (lambda: torch.ones(1, pin_memory=True), event.query, doubled.cpu):
            with pytest.raises(RuntimeError, match="capturing"):
                broken()
    assert len(emulated.violations()) == 3
    tensor.fill_(4.0)
    graph.replay()
    assert doubled.tolist() == [8.0, 8.0]


def test_the_hosts_work_takes_its_turn(emulated: Device) -> None:
    """The host's work runs on the stream, in order, and can read memory at its `host_address`."""
    tensor = torch.zeros(2, device=PLACE)
    at = emulated.host_address(tensor.data_ptr())
    found: list[float] = []
    tensor.add_(3)
    emulated.run(lambda: found.extend((ctypes.c_float * 2).from_address(at)))
    tensor.add_(1)
    assert tensor.tolist() == [4.0, 4.0]
    assert found == [3.0, 3.0]
