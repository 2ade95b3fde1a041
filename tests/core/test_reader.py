"""The reader thread writes records from a device off the training thread, in order, and loses none."""

from __future__ import annotations

import functools
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import ampmon
from ampmon.client import current_run
from ampmon.training.series import Reader, Stream
from recording import Recording, recording
from waiting import DEADLINE_S


@dataclass
class Arrival:
    """A record whose values arrive on demand; it notes the names of the threads that write it."""

    stream: Stream
    text: str
    arrived: bool = False
    fails: bool = False
    writer: list[str] = field(default_factory=list)
    brief: bool = False

    def ready(self) -> bool:
        return self.arrived

    def write(self) -> None:
        self.writer.append(threading.current_thread().name)
        if self.fails:
            raise RuntimeError("no")
        self.stream.event(self.text)


def test_what_lags_is_written_by_the_reader(data_directory: Path) -> None:
    """A ready record is written at once, a late one by the reader thread, all in the order of submission."""
    ampmon.init()
    run = current_run.current()
    assert run is not None
    stream = run.stream("device")
    records = [Arrival(stream, text) for text in ("a", "b", "c", "d")]
    records[0].arrived = True
    for record in records[:3]:
        stream.submit(record.ready, record.write, brief=record.brief)
    assert records[0].writer == [threading.current_thread().name]
    for record in records[1:]:
        record.arrived = True
    stream.submit(records[3].ready, records[3].write, brief=records[3].brief)
    kinds = [event.kind for event in recording(data_directory).messages if hasattr(event, "kind")]
    assert [kind for kind in kinds if kind in "abcd"] == ["a", "b", "c", "d"]
    assert {name for record in records[1:] for name in record.writer} == {"ampmon-reader"}


def test_a_record_that_fails_is_counted(data_directory: Path) -> None:
    """A record that cannot be decoded counts as a monitor error; the records behind it are written."""
    ampmon.init()
    run = current_run.current()
    assert run is not None
    stream = run.stream("device")
    records = [Arrival(stream, "bad", fails=True), Arrival(stream, "good")]

    def arrive() -> Recording:
        for record in records:
            stream.submit(record.ready, record.write, brief=record.brief)
        for record in records:
            record.arrived = True
        stream.drain()
        return recording(data_directory)

    with pytest.warns(ampmon.AmpmonWarning, match="reading from the device"):
        recorded = arrive()
    assert len(recorded.events("good")) == 1
    assert len(recorded.events("error")) == 1


def test_the_reader_ends_by_its_deadline() -> None:
    """`finish` waits for work under way until its deadline, and no longer."""
    stop, order = threading.Event(), list[str]()
    reader = Reader(lambda *_: None)

    def work() -> None:
        stop.wait()
        order.append("work")

    def finish() -> None:
        reader.finish(time.monotonic() + DEADLINE_S)
        order.append("finish")

    reader.submit(work)
    reader.finish(time.monotonic() + 0.1)
    assert not reader.idle
    finishing = threading.Thread(target=finish)
    finishing.start()
    stop.set()
    finishing.join()
    assert order == ["work", "finish"]
    assert reader.idle


def test_work_is_done_though_no_thread_could_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that was submitted while no thread could start runs in order on the next thread, or in `finish`."""
    reader, alone = Reader(lambda *_: None), Reader(lambda *_: None)
    done: list[int] = []

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for number, each in enumerate((reader, alone)):
            with pytest.raises(RuntimeError, match="new thread"):
                each.submit(functools.partial(done.append, number))
    reader.submit(functools.partial(done.append, 2))
    reader.finish(time.monotonic() + DEADLINE_S)
    assert done == [0, 2]
    alone.finish(time.monotonic() + DEADLINE_S)
    assert done == [0, 2, 1]
    assert reader.idle
    assert alone.idle


def test_work_after_the_end_is_done() -> None:
    """Work that is submitted after `finish` is still done."""
    reader = Reader(lambda *_: None)
    done: list[int] = []
    for number in range(2):
        reader.submit(functools.partial(done.append, number))
        reader.finish(time.monotonic() + DEADLINE_S)
    assert done == [0, 1]
    assert reader.idle
