"""What the recorder's thread does beside training: it syncs at once what is rare, and tells where records go."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ampmon import mounts, process, wire
from ampmon.config import resolve
from ampmon.housekeeper import SYNC_EVERY_S
from ampmon.recorder import AmpmonWarning, Recorder
from recording import recordings


def until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def put(recorder: Recorder, event: wire.UpdateEvent = "steady") -> None:
    recorder.recent.put(
        wire.Update,
        ordinal=0,
        scale=1.0,
        scale_after=1.0,
        growth_tracker=0,
        event=event,
        optimizers=(wire.OptimizerStep(optimizer="SGD", path="plain"),),
    )


@pytest.fixture
def recorder(data_directory: Path) -> Recorder:
    recorder = process.start(resolve())
    assert recorder is not None
    recorder.recent = recorder.stream(None)
    return recorder


def test_a_skip_is_synced_at_once(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is asked to keep a skip long before the second is over, and not for each of a hundred in a row."""
    synced: list[float] = []
    sync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (synced.append(time.monotonic()), sync(fd)))
    took = []
    for _ in range(4):
        time.sleep(0.2)
        before, started = len(synced), time.monotonic()
        put(recorder, "backoff")
        until(lambda before=before: len(synced) > before)
        took.append(synced[before] - started)
    assert sorted(took)[2] < 0.5
    before, started = len(synced), time.monotonic()
    for _ in range(100):
        put(recorder, "dead")
        time.sleep(0.005)
    assert len(synced) - before <= (time.monotonic() - started) / SYNC_EVERY_S + 1


def test_the_page_is_told_where_records_go(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a network mount an event says that they go through memory, why, and what a kill may lose; nobody is warned."""
    listed = data_directory.parent / "mountinfo"
    listed.write_text(f"1 0 0:9 / {data_directory.parent} rw - lustre mds:/ rw\n")
    monkeypatch.setattr(mounts, "MOUNTS", listed)
    recorder = process.start(resolve())
    assert recorder is not None
    time.sleep(0.3)
    (recorded,) = recordings(data_directory)
    (told,) = recorded.events("spool")
    assert told.detail["kept"] == "memory"
    assert "lustre" in told.detail["why"]
    assert 0 < told.detail["window_ms"] <= 1000


def test_a_full_disk_is_warned_of_once_and_told_when_it_is_over(
    recorder: Recorder, data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the disk is full: one warning that says what to do. Afterwards nothing is missing, and the page knows."""
    write = os.write

    def refuse(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def train() -> None:
        monkeypatch.setattr(os, "write", refuse)
        for _ in range(130):
            put(recorder)
            time.sleep(0.01)
        monkeypatch.setattr(os, "write", write)
        for _ in range(10):
            put(recorder)
        process.finish()

    with pytest.warns(AmpmonWarning, match=r"No space left.*Make room there") as warned:
        train()
    assert len(warned) == 1
    (recorded,) = recordings(data_directory)
    assert [one.seq for one in recorded.updates] == list(range(140))
    assert recorded.events("spool")[0].detail["kept"] == "memory"
    assert recorded.events("dropped") == []


def test_a_data_directory_that_is_deleted_is_made_anew(
    recorder: Recorder, data_directory: Path
) -> None:
    """In mid-run somebody deletes it: one warning, what follows is recorded, and what went is a gap."""

    def train() -> None:
        put(recorder)
        shutil.rmtree(data_directory)
        for _ in range(25):
            put(recorder)
            time.sleep(0.1)
        process.finish()

    with pytest.warns(AmpmonWarning, match="somebody removed the records") as warned:
        train()
    assert len(warned) == 1
    (recorded,) = recordings(data_directory)
    seqs = [one.seq for one in recorded.updates]
    assert seqs == list(range(seqs[0], 26))
    assert 1 < seqs[0] < 20
    assert recorded.attempt.attempt_id == recorder.attempt_id
    assert recorded.events("finish")


def test_threads_end_with_the_run(data_directory: Path) -> None:
    """A run that is finished leaves no thread of its own behind."""
    others = set(threading.enumerate())
    assert process.start(resolve()) is not None
    assert set(threading.enumerate()) - others
    process.finish()
    until(lambda: not set(threading.enumerate()) - others)
