"""Training on several streams, and beside forked workers, leaves the records of a training alone.

Runs on the emulated device in a process that test_device.py starts, and on CUDA by `make gpu`.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from device.device_suite import in_child
from device.place import EMULATED, PLACE, Device, at_rest
from device.training_suite import UPDATES, Training, content
from recording import recording


__all__ = ["at_rest"]  # a fixture
DELAY_CYCLES = 3_000_000
"""At most a millisecond or two, before an update on a GPU."""
ALLOCATED = 1000
Figures = Callable[[str, object], None]


class Delayed:
    """A training on its own stream, with a delay before each update and gradients at new addresses each time."""

    def __init__(self, name: str, stream: Any, chance: random.Random) -> None:
        self.training = Training(name=name)
        self._stream, self._chance = stream, chance
        self._stream.wait_stream(torch.accelerator.current_stream())
        self._kept: list[torch.Tensor] = []

    def update(self, number: int) -> None:
        """Enqueue one update behind a delay on the stream."""
        with self._stream:
            if not EMULATED:
                torch.cuda._sleep(self._chance.randrange(DELAY_CYCLES))
            # Take some of the memory that the last update's gradients have freed, so the next ones move.
            self.training.optimizer.zero_grad()
            sizes = [self._chance.randrange(1, ALLOCATED) for _ in range(4)]
            self._kept = [torch.empty(size, device=PLACE) for size in sizes]
            self.training.update(number)


def on_streams(
    directory: Path,
    patch: pytest.MonkeyPatch,
    count: int,
    during: AbstractContextManager[None],
) -> tuple[int, int, int]:
    """Train in turns on ``count`` streams; return how many records differ from one training's, all, and errors."""
    alone = Training(name="0")
    for number in range(UPDATES):
        alone.update(number)
        torch.accelerator.synchronize()
    expected = content(recording(directory), stream="0")
    patch.setenv("AMPMON_DIR", str(directory / "beside"))
    chance = random.Random(count)
    names = [str(number) for number in range(count)]
    trainings = [Delayed(name, torch.Stream(PLACE), chance) for name in names]
    with during:
        for number in range(UPDATES):
            for each in chance.sample(trainings, count):
                each.update(number)
    torch.accelerator.synchronize()
    recorded = recording(directory / "beside")
    found = [content(recorded, stream=name) for name in names]
    wrong = sum(one != other for each in found for one, other in zip_longest(each, expected))
    errors = sum(each.training.scaler.monitor.errors for each in trainings)
    return wrong, sum(map(len, found)), errors


@pytest.mark.parametrize("count", [2, 8])
def test_trainings_on_streams_of_their_own(
    emulated: Device,
    data_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Figures,
    count: int,
) -> None:
    """Trainings in turns, each on its delayed stream and with moving gradients, have the records of one alone."""
    emulated.jitter(200)
    wrong, records, errors = on_streams(data_directory, monkeypatch, count, nullcontext())
    record_property("wrong_records", wrong)
    record_property("records", records)
    assert (wrong, records, errors) == (0, count * UPDATES, 0)


def test_streams_of_its_own(
    emulated: Device, data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training on a stream of its own has the records of training on the default stream."""
    side = torch.Stream(PLACE)
    training = Training()
    for number in range(UPDATES):
        training.update(number)
    expected = content(recording(data_directory))
    monkeypatch.setenv("AMPMON_DIR", str(data_directory / "beside"))
    training = Training()
    side.wait_stream(torch.accelerator.current_stream())
    emulated.jitter(200)
    with side:
        for number in range(UPDATES):
            training.update(number)
        assert content(recording(data_directory / "beside")) == expected


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores
def test_forked_workers_live(
    emulated: Device, data_directory: Path, record_property: Figures
) -> None:
    """Four workers that are forked while records wait for the device all survive, in each of three epochs."""
    # On a GPU the first update compiles kernels, which takes longer than a pause.
    Training(name="first").update(0)
    training = Training(name="forked")
    dead = 0
    for epoch in range(3):
        with emulated.paused():
            for number in range(8):
                training.update(8 * epoch + number)
            loader = DataLoader(range(8), batch_size=2, num_workers=4, collate_fn=sum)
            batches = iter(loader)
        try:
            assert list(batches) == [1, 5, 9, 13]
        except RuntimeError as error:
            dead += 1
            print(error)
    record_property("dead_workers", dead)
    assert dead == 0
    assert len(recording(data_directory).of("forked")) == UPDATES
    assert training.scaler.monitor.errors == 0


def test_a_dropped_scaler_is_collected_in_a_forked_child(emulated: Device) -> None:
    """A forked child survives the garbage collection of a dropped scaler that was timed by events."""
    gc.collect()
    gc.disable()
    try:
        training = Training()
        for number in range(UPDATES):
            training.update(number)
        torch.accelerator.synchronize()
        del training
        assert in_child(gc.collect) == 0
    finally:
        gc.enable()
