"""Copies to and from the host never block, arrive whole and reuse a few buffers."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence

import pytest
import torch

from ampmon.probe.ring import JoinedReadback, Readback, ReadbackPart, Ring, Slot, upload


class Delayed(Slot):
    """A slot in ordinary memory, whose copies arrive when the test calls `arrive`."""

    __slots__ = ("_pending", "arrived")

    made: list[int] = []

    def __init__(self, size: int) -> None:
        self._buffer = torch.zeros(size, dtype=torch.uint8)
        self._views = {}
        self.arrived = False
        self.made.append(size)

    def copy(self, tensor: torch.Tensor, behind: Sequence[torch.Tensor] = ()) -> torch.Tensor:
        parts = [each.reshape(-1) for each in (tensor, *behind)]
        tensor = torch.cat(parts) if behind else tensor.clone()
        host = self._like(tensor)
        self._pending, self.arrived = (host, tensor), False
        return host

    def send(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        source = self._like(tensor).copy_(tensor)
        sent = torch.empty_like(tensor)
        self._pending, self.arrived = (sent, source), False
        return sent

    def filled(self) -> bool:
        return self.arrived

    def arrive(self) -> None:
        self.arrived = True
        host, tensor = self._pending
        host.copy_(tensor)

    def wait(self) -> None:
        if not self.arrived:
            self.arrive()


class Watched(Delayed):
    """A delayed slot that reports each call of `filled` and `send`."""

    def __init__(self, size: int, called: Callable[[str], None]) -> None:
        super().__init__(size)
        self._called = called

    def filled(self) -> bool:
        self._called("filled")
        return super().filled()

    def send(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        self._called("send")
        return super().send(tensor, device)


def arrive(slots: list[Delayed]) -> None:
    for slot in slots:
        slot.arrive()


@pytest.fixture
def ring() -> Ring:
    Delayed.made = []
    return Ring(Delayed)


def test_a_copy_that_nobody_reads_gives_its_buffer_back(ring: Ring) -> None:
    """Dropping an unread copy frees no pinned memory; its buffer is reused once the copy has arrived."""
    slots: list[Delayed] = []
    for arrived in (False, True):
        unread = Readback(torch.zeros(3), ring)
        assert isinstance(unread._slot, Delayed)
        slots.append(unread._slot)
        if arrived:
            slots[0].arrive()
        del unread
    third = Readback(torch.ones(3), ring)
    assert third._slot is slots[0]
    assert len(Delayed.made) == 2
    third._slot.arrive()
    assert third.result().tolist() == [1.0, 1.0, 1.0]


def test_a_buffer_is_used_again(ring: Ring) -> None:
    """A hundred copies, each read before the next, use one buffer; the results have memory of their own."""
    results = [Readback(torch.full((3,), float(n)), ring).result() for n in range(100)]
    assert len(Delayed.made) == 1
    assert [result.tolist() for result in results] == [[float(n)] * 3 for n in range(100)]


def test_a_lag_takes_more_buffers_and_no_more(ring: Ring) -> None:
    """With three copies under way at any time there are three buffers, and no copy overwrites another."""
    under_way: list[Readback] = []
    seen = []
    for n in range(30):
        under_way.append(Readback(torch.tensor([n, -n]), ring))
        if len(under_way) == 3:
            seen.append(under_way.pop(0).result().tolist())
    assert seen == [[n, -n] for n in range(28)]
    assert len(Delayed.made) == 3


@pytest.mark.filterwarnings("error")
def test_a_joined_copy_without_a_buffer_is_dropped_silently() -> None:
    """If no pinned memory can be allocated, the caller gets the error, and nothing else is printed."""

    def full(_: int) -> Slot:
        raise MemoryError

    with pytest.raises(MemoryError):
        JoinedReadback(torch.device("cpu"), Ring(full))
    gc.collect()


def test_sizes_have_buffers_of_their_own(ring: Ring) -> None:
    """A buffer's size is a power of two, at least 64 bytes and at most twice the copy."""
    for length in (0, 1, 8, 9, 71, 148 * 71):
        assert Readback(torch.arange(length), ring).result().tolist() == list(range(length))
    assert Delayed.made == [64, 128, 1024, 131072]


def test_tensors_behind_the_first_arrive_with_it(ring: Ring) -> None:
    """Several tensors of one dtype arrive flat, in order and in one buffer, also if nothing has to be copied."""
    first, others = torch.tensor([1.0]), [torch.tensor([2.0, 3.0]), torch.tensor([4.0])]
    for readback in (Readback(first, ring, behind=others), Readback(first, behind=others)):
        assert readback.result().tolist() == [1.0, 2.0, 3.0, 4.0]
    assert Delayed.made == [64]


@pytest.mark.parametrize("delayed", [False, True])
def test_readers_share_a_copy(ring: Ring, *, delayed: bool) -> None:
    """Parts of a copy give their own elements, as numbers and as a tensor. Its buffer is used again after the first."""
    for _ in range(3):
        flag, loss = torch.tensor(0.0), torch.tensor([float("inf")])
        whole = Readback(flag, ring if delayed else None, behind=[loss])
        first, second = ReadbackPart(whole, slice(1)), ReadbackPart(whole, slice(1, None))
        assert first.values() == [0.0]
        assert second.values() == [float("inf")]
        assert torch.equal(second.result(), loss)
        assert (first.ready(), second.ready()) == (True, True)
    assert len(Delayed.made) == delayed


def test_nothing_is_ready_before_it_arrives() -> None:
    """`ready` is False until the copy has arrived, and True at once for a tensor on the host."""
    slots: list[Delayed] = []
    watching = Ring(lambda size: slots.append(Delayed(size)) or slots[-1])
    readback = Readback(torch.ones(2), watching)
    assert not readback.ready()
    slots[0].arrive()
    assert readback.ready()
    assert readback.result().tolist() == [1.0, 1.0]
    assert Readback(torch.ones(2)).ready()


@pytest.mark.parametrize("of", ["a device with events", "another"])
def test_what_is_written_later_is_not_read(ring: Ring, of: str) -> None:
    """A copy keeps the values at the time of the request, even of a view whose base is written in place."""
    base = torch.ones(3)
    readback = Readback(
        base[1].detach().reshape(()), ring if of == "a device with events" else None
    )
    base.zero_()
    assert readback.result().item() == 1.0


def test_the_device_is_not_asked_about_what_has_arrived() -> None:
    """Reading a copy that has arrived queries no event, so a CUDA graph may be captured meanwhile."""
    asked: list[bool] = []

    class Asked(Delayed):
        def filled(self) -> bool:
            asked.append(super().filled())
            return asked[-1]

    slots: list[Delayed] = []
    readback = Readback(torch.ones(2), Ring(lambda size: slots.append(Asked(size)) or slots[-1]))
    assert not readback.ready()
    slots[0].arrive()
    assert readback.ready()
    assert readback.result().tolist() == [1.0, 1.0]
    assert readback.ready()
    assert asked == [False, True]


@pytest.mark.gpu
def test_a_gpus_copies_arrive() -> None:
    """Copies from a GPU behind a long computation hold its results, in the order of the requests."""
    work = torch.ones(1 << 24, device="cuda")
    readbacks = []
    for n in range(20):
        for _ in range(5):
            work = work * 1.0
        readbacks.append(Readback((work[:3] * n).long()))
    assert [readback.result().tolist() for readback in readbacks] == [[n] * 3 for n in range(20)]


def test_an_upload_is_not_written_over() -> None:
    """Each upload arrives whole, however late, and its buffer is reused once it has arrived."""
    slots: list[Delayed] = []
    uploads = Ring(lambda size: slots.append(Delayed(size)) or slots[-1])
    cpu = torch.device("cpu")
    late = [uploads.upload(torch.tensor([n, -n]), cpu) for n in range(3)]
    for slot in slots:
        slot.arrive()
    assert [sent.tolist() for sent in late] == [[0, 0], [1, -1], [2, -2]]

    for n in range(50):
        sent = uploads.upload(torch.tensor([n, n]), cpu)
        next(slot for slot in slots if not slot.arrived).arrive()
        assert sent.tolist() == [n, n]
    assert len(slots) == 3


@pytest.mark.parametrize("place", ["filled", "send"])
def test_threads_upload_at_once(place: str) -> None:
    """An upload that is interrupted by another thread's upload arrives whole, and so does the other."""
    cpu, sent = torch.device("cpu"), {}
    stopped, go_on = threading.Event(), threading.Event()

    def send(n: int) -> None:
        sent[n] = uploads.upload(torch.tensor([n]), cpu)

    other = threading.Thread(target=send, args=(-1,))

    def pass_by(here: str) -> None:
        if stopped.is_set() or len(sent) < 3:
            return
        if threading.current_thread() is not other:
            other.start()
            assert stopped.wait(60)
        elif here == place:
            stopped.set()
            assert go_on.wait(60)

    slots: list[Delayed] = []
    uploads = Ring(lambda size: slots.append(Watched(size, pass_by)) or slots[-1])
    for n in range(3):
        send(n)
    arrive(slots)
    try:
        send(3)
    finally:
        go_on.set()
        other.join()
    arrive(slots)
    assert {n: tensor.item() for n, tensor in sent.items()} == {n: n for n in (0, 1, 2, 3, -1)}


def test_an_upload_to_the_host_is_none() -> None:
    """An upload to the CPU returns the tensor itself."""
    tensor = torch.arange(3)
    assert upload(tensor, torch.device("cpu")) is tensor
