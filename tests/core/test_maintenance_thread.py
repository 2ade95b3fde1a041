"""The maintenance thread syncs rare records at once and reports where records go."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path

import pytest

from ampmon import sender, wire
from ampmon.client import current_run, maintenance_thread
from ampmon.client.recorder import Recorder
from ampmon.client.troubles import AmpmonWarning
from ampmon.config import resolve
from ampmon.system import mounts
from recording import recordings
from waiting import DEADLINE_S, wait_for


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


def start() -> Recorder:
    recorder = current_run.start(resolve())
    assert recorder is not None
    recorder.recent = recorder.stream(None)
    return recorder


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the file descriptor of each `fdatasync`."""
    synced: list[int] = []
    sync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (synced.append(fd), sync(fd)))
    return synced


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the maintenance thread check everything as often as it syncs."""
    monkeypatch.setattr(maintenance_thread, "EVERY_S", maintenance_thread.SYNC_EVERY_S)


def test_a_skip_is_synced_at_once(syncs: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A skip is synced to disk without waiting for the maintenance thread's next round."""
    monkeypatch.setattr(maintenance_thread, "EVERY_S", 86_400.0)
    recorder = start()
    for _ in range(4):
        before = len(syncs)
        put(recorder, "backoff")
        wait_for(lambda before=before: len(syncs) > before)


def test_skips_in_a_row_share_a_sync(syncs: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncs keep a minimum interval, however many skips there are."""
    monkeypatch.setattr(maintenance_thread, "SYNC_EVERY_S", 86_400.0)
    recorder = start()
    for _ in range(1000):
        put(recorder, "dead")
    current_run.finish()
    assert 1 <= len(syncs) <= 3  # at the start and at the end


def test_the_page_shows_where_records_go(
    data_directory: Path, busy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a network mount an event, not a warning, says that records go through memory, why, and what a kill loses."""
    listed = data_directory.parent / "mountinfo"
    listed.write_text(f"1 0 0:9 / {data_directory.parent} rw - lustre mds:/ rw\n")
    monkeypatch.setattr(mounts, "MOUNTS", listed)
    recorder = start()
    wait_for(lambda: recorder._maintenance._kept == "memory")
    (recorded,) = recordings(data_directory)
    (event,) = recorded.events("spool")
    assert event.detail["kept"] == "memory"
    assert "lustre" in event.detail["why"]
    assert 0 < event.detail["window_ms"] <= 1000


def test_a_full_disk_is_warned_of_once_and_reported_when_it_is_over(
    data_directory: Path, busy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk causes one warning that says what to do; afterwards no record is missing and an event reports it."""
    recorder, write = start(), os.write

    def refuse(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def train() -> None:
        monkeypatch.setattr(os, "write", refuse)
        for _ in range(130):
            put(recorder)
        wait_for(lambda: len(warned))
        monkeypatch.setattr(os, "write", write)
        for _ in range(10):
            put(recorder)
        current_run.finish(DEADLINE_S)

    with pytest.warns(AmpmonWarning, match=r"No space left.*Free space there") as warned:
        train()
    assert len(warned) == 1
    (recorded,) = recordings(data_directory)
    assert [one.seq for one in recorded.updates] == list(range(140))
    assert recorded.events("spool")[0].detail["kept"] == "memory"
    assert recorded.events("dropped") == []


@pytest.mark.filterwarnings("ignore:.*has not confirmed:ampmon.AmpmonWarning")
def test_rejected_records_are_warned_of_once(busy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the server has rejected records, one warning says so, and names the file with the reasons."""
    monkeypatch.setattr(sender, "ensure_running", lambda directory: None)
    recorder = current_run.start(resolve(mode="online"))
    assert recorder is not None
    rejected = recorder._spool.path / "rejected"

    def reject() -> None:
        rejected.touch()
        wait_for(lambda: len(warned))
        current_run.finish(0)

    with pytest.warns(AmpmonWarning, match="rejects records of this run") as warned:
        reject()
    assert [str(rejected) in str(each.message) for each in warned] == [True, False]


def test_a_disk_that_loses_what_it_took_is_warned_of_once(
    data_directory: Path, busy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write may succeed in memory and fail when it is synced, as on NFS. The system tells of it once."""
    recorder, sync = start(), os.fdatasync
    asked: list[int] = []

    def fail_once(fd: int) -> None:
        asked.append(fd)
        if len(asked) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(fd)

    def train() -> None:
        monkeypatch.setattr(os, "fdatasync", fail_once)
        put(recorder, "backoff")
        wait_for(lambda: len(warned) and len(asked) > 2)
        current_run.finish(DEADLINE_S)

    with pytest.warns(AmpmonWarning, match=r"cannot write.*Input/output error") as warned:
        train()
    assert len(warned) == 1
    assert len(recordings(data_directory)[0].updates) == 1


def test_a_data_directory_that_is_deleted_is_made_anew(data_directory: Path, busy: None) -> None:
    """A data directory deleted in mid-run is made again with one warning; only the deleted records are missing."""
    recorder = start()

    def put_until_remade() -> int:
        put(recorder)
        return recorder._spool.remade

    def train() -> int:
        put(recorder)
        shutil.rmtree(data_directory)
        wait_for(put_until_remade)
        wait_for(lambda: len(warned))
        lost = recorder.recent.seq
        for _ in range(5):
            put(recorder)
        current_run.finish(DEADLINE_S)
        return lost

    with pytest.warns(
        AmpmonWarning, match="were deleted, and those not sent yet are lost"
    ) as warned:
        lost = train()
    assert len(warned) == 1
    (recorded,) = recordings(data_directory)
    seqs = [one.seq for one in recorded.updates]
    assert seqs == list(range(seqs[0], lost + 5))
    assert 1 <= seqs[0] <= lost
    assert recorded.attempt.attempt_id == recorder.attempt_id
    assert recorded.events("finish")


def test_threads_end_with_the_run() -> None:
    """A finished run leaves no thread of its own."""
    others = set(threading.enumerate())
    assert current_run.start(resolve()) is not None
    assert set(threading.enumerate()) - others
    current_run.finish()
    wait_for(lambda: not set(threading.enumerate()) - others)
