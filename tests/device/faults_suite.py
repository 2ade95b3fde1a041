"""Planted faults of the kind that only a GPU shows: the emulated device shows each of them.

test_device.py runs this in its own process.
"""

from __future__ import annotations

import gc
import re
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.utils.data import DataLoader

from ampmon.client import measurer, recorder
from ampmon.probe import accelerator, ring
from ampmon.probe.gpu import table
from device.emulated import Device, device
from device.place import PLACE
from device.streams_suite import UPDATES as UPDATES_ON_STREAMS
from device.streams_suite import on_streams
from device.training_suite import Training, content
from recording import recording


UPDATES = 6

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """The device, running freely, with no wait counted and no buffer spoilt by an earlier fault."""
    monkeypatch.setattr(ring, "_ring", ring.Ring())
    monkeypatch.setattr(ring, "_uploads", ring.Ring())
    device().reset()
    yield device()
    device().reset()
    gc.collect()  # a child that is forked later must not find buffers left by a fault


def unplanted(patch: pytest.MonkeyPatch) -> None:
    """Plant nothing."""


def paused_symptoms(
    emulated: Device, directory: Path, patch: pytest.MonkeyPatch, plant: Plant
) -> set[str]:
    """Return the symptoms (early, waits, wrong) of updates enqueued behind a paused device while a fault is planted."""
    training = Training()
    for number in range(UPDATES):
        training.update(number)
    expected = content(recording(directory))
    patch.setenv("AMPMON_DIR", str(directory / "planted"))
    training = Training()
    torch.accelerator.synchronize()
    emulated.forget()
    plant(patch)
    with emulated.paused():
        for number in range(UPDATES):
            training.update(number)
        torch.accelerator.current_stream().query()
        seen = {"early"} if training.scaler.monitor.updates else set()
        seen |= {"waits"} if emulated.waits() else set()
    if content(recording(directory / "planted")) != expected:
        seen.add("wrong")
    return seen


def blocking_copy(patch: pytest.MonkeyPatch) -> None:
    def copy(slot: Any, tensor: torch.Tensor, behind: Sequence[torch.Tensor] = ()) -> torch.Tensor:
        tensor = torch.cat([tensor, *behind]) if behind else tensor
        host: torch.Tensor = slot._like(tensor).copy_(tensor)
        slot.mark(tensor.device)
        return host

    patch.setattr(ring.Slot, "copy", copy)


def wait_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ring.Slot, "filled", lambda slot: True)


def slot_returned_early(patch: pytest.MonkeyPatch) -> None:
    take = ring.Ring.take

    def take_and_return(of: Any, key: Any) -> Any:
        slot = take(of, key)
        of.put_back(key, slot)
        return slot

    patch.setattr(ring.Ring, "take", take_and_return)


@pytest.mark.parametrize(
    ("plant", "symptom"),
    [
        (unplanted, None),
        (blocking_copy, "waits"),
        (wait_left_out, "wrong"),
        (slot_returned_early, "wrong"),
    ],
)
def test_faults_of_readbacks_show_behind_a_pause(
    emulated: Device,
    data_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    plant: Plant,
    symptom: str | None,
) -> None:
    """A blocking copy shows as a wait; an omitted wait and a slot returned early show as wrong records."""
    seen = paused_symptoms(emulated, data_directory, monkeypatch, plant)
    assert symptom in seen if symptom else not seen


@pytest.mark.parametrize(("plant", "right"), [(unplanted, True), (wait_left_out, False)])
def test_a_wait_left_out_shows_on_streams(
    emulated: Device,
    data_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    plant: Plant,
    right: bool,
) -> None:
    """Trainings on delayed streams record nothing wrong, unless values are read before they have arrived."""

    @contextmanager
    def planted() -> Iterator[None]:
        plant(monkeypatch)
        with emulated.paused():
            yield

    try:
        wrong, records, _ = on_streams(data_directory, monkeypatch, 2, planted())
    except msgspec.ValidationError:  # values that are read too early can be anything
        wrong = records = 2 * UPDATES_ON_STREAMS
    assert (wrong == 0) == right
    assert records == 2 * UPDATES_ON_STREAMS


def buffer_reused(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ring.Slot, "filled", lambda slot: True)


@pytest.mark.parametrize(("plant", "right"), [(unplanted, True), (buffer_reused, False)])
def test_a_reused_upload_buffer_shows(
    emulated: Device, monkeypatch: pytest.MonkeyPatch, plant: Plant, right: bool
) -> None:
    """Tables uploaded behind a paused device hold the right addresses, unless a buffer is reused too soon."""
    moved = [[torch.ones(5, device=PLACE) for _ in range(3)] for _ in range(2)]
    plant(monkeypatch)
    tables = table.Tables()
    with emulated.paused():
        pointers = [tables.of(gradients).pointers for gradients in moved]
    expected = [[gradient.data_ptr() for gradient in gradients] for gradients in moved]
    assert ([each.tolist() for each in pointers] == expected) == right


def table_without_stream(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(table, "stream_id", lambda device: 0)


@pytest.mark.parametrize(("plant", "right"), [(unplanted, True), (table_without_stream, False)])
def test_a_table_of_another_stream_shows(
    emulated: Device, monkeypatch: pytest.MonkeyPatch, plant: Plant, right: bool
) -> None:
    """A stream has its own filled table while another stream is delayed, unless the two share one table."""
    gradients = [torch.ones(5, device=PLACE) for _ in range(3)]
    plant(monkeypatch)
    tables, gate = table.Tables(), threading.Event()
    with torch.Stream(PLACE):
        emulated.run(lambda: gate.wait() and None)
        tables.of(gradients)
    try:
        pointers = tables.of(gradients).pointers.tolist()
    finally:
        gate.set()
    assert (pointers == [gradient.data_ptr() for gradient in gradients]) == right


class Forgetful(list[object]):
    def extend(self, more: object) -> None:
        pass


# As below, if the main thread is first: then the KeyError is in the thread that it starts.
@pytest.mark.filterwarnings("ignore:Exception ignored in thread started by")
def test_a_device_call_in_a_forked_child_shows(
    emulated: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that destroys what waits for the device ends at once, and its loader reports it."""
    monkeypatch.delattr(ring.Readback, "__del__")
    monkeypatch.setattr(recorder, "_of_parents", Forgetful())
    training = Training()
    # The loader learns of the death while it waits for a batch, or by a signal just after the start, perhaps within
    # `Thread.start`, which makes a KeyError of it.
    fails = pytest.raises((RuntimeError, KeyError))
    with fails as caught, emulated.paused():
        training.update(0)
        list(DataLoader(range(4), num_workers=1))
    words = "".join(traceback.format_exception(caught.value))
    assert re.search("exited unexpectedly|killed by signal: Aborted", words)


def test_an_allocation_in_a_capture_shows(
    emulated: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A monitor that misses a capture allocates pinned memory in it, which is a violation."""
    training = Training()
    training.optimizer.param_groups[0]["capturable"] = True  # torch 2.15 requires it
    monkeypatch.setattr(accelerator, "_capturing_modules", lambda: ())
    with emulated.capture() as graph:
        training.update(0)
    graph.replay()  # completes the copies that wait for it
    assert "allocating pinned memory" in emulated.violations()


def test_pinned_memory_freed_in_a_capture_shows(
    emulated: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropping an iteration when a capture begins frees its pinned memory in the capture, which is a violation."""
    monkeypatch.delattr(ring.Readback, "__del__")
    monkeypatch.setattr(measurer.Measurer, "stand_aside", lambda self, iteration: None)
    training = Training()
    training.scaler.scale(training.model(training.inputs[0]).square().mean()).backward()
    training.scaler.unscale_(training.optimizer)
    with emulated.capture():
        training.scaler.update()
    assert "freeing pinned memory" in emulated.violations()
