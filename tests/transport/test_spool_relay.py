"""Slow, remote, full or missing disks: records go through memory, and training does not wait."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ampmon import wire
from ampmon.spool import segments
from ampmon.spool.reader import SpoolReader
from ampmon.spool.relay import RING_BYTES, Relay
from ampmon.system import mounts
from attempts import BEGIN, Attempt, read_on, seqs_of
from doubles import ManualClock
from waiting import DEADLINE_S, wait_for


def seqs_in(path: Path) -> list[int]:
    reader = SpoolReader(path, BEGIN)
    payloads, corrupt = read_on(reader)
    assert corrupt == 0
    assert "attempt" in reader.headers
    return seqs_of(payloads)


class Disk:
    """Calls ``act``, which may wait or raise, before each `os.write`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.act: Callable[[], None] = lambda: None
        self.writes = 0
        write = os.write

        def watched(fd: int, data: bytes) -> int:
            self.writes += 1
            self.act()
            return write(fd, data)

        monkeypatch.setattr(os, "write", watched)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk(monkeypatch)
    yield disk
    disk.act = lambda: None


def on_a_network(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Have the directory taken for a mount of a file server."""
    listed = directory / "mountinfo"
    listed.write_text(f"1 0 8:1 / / rw - ext4 a rw\n2 1 0:9 / {directory} rw - nfs4 nas:/ rw\n")
    monkeypatch.setattr(mounts, "MOUNTS", listed)


def refuse() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_system_of_several_machines_is_written_by_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: Disk
) -> None:
    """On a network mount all records go through memory, arrive in order, and no append writes to the disk."""
    on_a_network(monkeypatch, tmp_path)
    attempt = Attempt(tmp_path / "data")
    writers = set()
    disk.act = lambda: writers.add(threading.get_ident())
    assert (attempt.spool.kept, "nfs4" in attempt.spool.why) == ("memory", True)
    attempt.events(500)
    wait_for(lambda: attempt.spool.waiting == 0)
    attempt.events(500)
    assert attempt.spool.kept == "memory"
    assert 0 < attempt.spool.window_ms <= 1000
    attempt.spool.close()
    assert seqs_in(attempt.spool.path) == list(range(1000))
    assert threading.get_ident() not in writers


def test_a_disk_that_hangs_costs_one_append_its_time(tmp_path: Path, disk: Disk) -> None:
    """After one slow append, records go through memory until the disk is fast again."""
    clock, direct = ManualClock(), list[float]()
    attempt, appending = Attempt(tmp_path, clock=clock), threading.get_ident()

    def hang() -> None:
        clock.advance(0.5)
        if threading.get_ident() == appending:
            direct.append(clock.now_s)

    disk.act = hang
    attempt.events(50)
    assert len(direct) == 1
    assert attempt.spool.kept == "memory"
    disk.act = lambda: None
    wait_for(lambda: attempt.spool.waiting == 0)
    for _ in range(20):
        attempt.events(50)
        wait_for(lambda: attempt.spool.waiting == 0)
    assert attempt.spool.kept == "disk"
    attempt.spool.close()
    assert seqs_in(attempt.spool.path) == list(range(1050))


def test_a_disk_that_hangs_again_has_to_be_quick_for_longer(tmp_path: Path, disk: Disk) -> None:
    """Records go to the disk again after 100 quick writes in a row, and the next time after twice as many."""
    clock = ManualClock()
    attempt = Attempt(tmp_path, clock=clock)
    for enough in (100, 200):
        disk.act = lambda: clock.advance(0.5)
        attempt.events(2)
        wait_for(lambda: attempt.spool.waiting == 0)
        disk.act = lambda: None
        for count, kept in ((enough - 1, "memory"), (1, "memory"), (1, "disk")):
            attempt.events(count)
            assert attempt.spool.kept == kept
            wait_for(lambda: attempt.spool.waiting == 0)
        assert attempt.spool.why == "records are written quickly again"
        assert attempt.spool.window_ms == 0
    attempt.spool.close()


def test_a_disk_that_was_quick_for_long_has_no_credit(tmp_path: Path, disk: Disk) -> None:
    """Once a disk hangs, records go through memory after one slow append, however many quick ones came before."""
    clock = ManualClock()
    attempt = Attempt(tmp_path, clock=clock)
    attempt.events(1000)
    disk.act = lambda: clock.advance(0.1)
    attempt.event()
    assert attempt.spool.kept == "memory"
    attempt.spool.close()


def test_single_waits_of_a_busy_machine_change_nothing(tmp_path: Path, disk: Disk) -> None:
    """Single appends of 6 ms, as on a busy machine, leave records going straight to disk."""
    clock = ManualClock()
    attempt = Attempt(tmp_path, clock=clock)
    for _ in range(40):
        disk.act = lambda: clock.advance(0.006)
        attempt.event()
        disk.act = lambda: None
        attempt.events(100)
    assert attempt.spool.kept == "disk"
    attempt.spool.close()


def test_a_disk_that_refuses_is_asked_until_it_takes_what_waits(tmp_path: Path, disk: Disk) -> None:
    """Records that a full disk rejects wait in memory with the reason, and are written once there is room."""
    attempt = Attempt(tmp_path)
    attempt.events(10)
    disk.act = refuse
    attempt.events(100)
    wait_for(lambda: attempt.spool.trouble is not None)
    assert (attempt.spool.kept, attempt.spool.why) == ("memory", os.strerror(errno.ENOSPC))
    disk.act = lambda: None
    attempt.events(100)
    attempt.spool.close()
    assert (attempt.spool.failed, attempt.spool.trouble) == (0, None)
    assert seqs_in(attempt.spool.path) == list(range(210))


def test_the_disk_gets_what_waits_before_what_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However quick the disk was, records go through memory until none waits there."""
    on_a_network(monkeypatch, tmp_path)
    attempt = Attempt(tmp_path)
    wait_for(lambda: not attempt.spool.waiting)
    monkeypatch.setattr(Relay, "_start", lambda relay: None)
    attempt.spool._for_good = False
    attempt.spool._relay.rest()
    attempt.event()
    attempt.spool._relay.quick = 10**6
    attempt.event()
    assert (attempt.spool.waiting, attempt.spool.kept) == (2, "memory")
    attempt.spool.close()
    assert seqs_in(attempt.spool.path) == [0, 1]


def test_a_record_behind_the_end_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that follows the spool's end on a network mount is counted as lost and does not wait in memory."""
    on_a_network(monkeypatch, tmp_path)
    attempt = Attempt(tmp_path)
    attempt.spool.close()
    assert not attempt.spool.append(b"late")
    assert (attempt.spool.failed, attempt.spool.waiting) == (1, 0)


def test_memory_is_bounded_and_what_is_beyond_is_counted(tmp_path: Path, disk: Disk) -> None:
    """At most twice the ring waits in memory. Further appends return False and are counted."""
    attempt = Attempt(tmp_path)
    disk.act = refuse
    record = wire.encode(
        wire.Event(stream="", seq=0, time=0, kind="init", detail={"x": "y" * 1000})
    )
    kept = [attempt.spool.append(record) for _ in range(10_000)]
    assert 0.5 < sum(kept) * len(record) / (2 * RING_BYTES) < 1
    assert attempt.spool.fullness > 1.9
    assert attempt.spool.failed == kept.count(False) > 0
    attempt.spool.close(deadline_s=0.1)
    assert attempt.spool.failed == len(kept)


def test_a_header_that_finds_memory_full_precedes_the_next_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: Disk
) -> None:
    """If memory is full because the disk hangs, a new header begins a segment, before the records after it."""
    on_a_network(monkeypatch, tmp_path)
    attempt, answers = Attempt(tmp_path / "data"), threading.Event()
    wait_for(lambda: attempt.spool.waiting == 0)
    disk.act = lambda: answers.wait(DEADLINE_S) or None
    for size in (1000, 1):
        while attempt.spool.append(bytes(size)):
            pass
    assert not attempt.spool.header("scaler", b"described")
    answers.set()
    wait_for(lambda: attempt.spool.waiting == 0)
    assert attempt.spool.append(b"last")
    attempt.spool.close()

    reader = SpoolReader(attempt.spool.path, BEGIN)
    read = list[bytes]()
    while b"last" not in read[-1:]:
        before = reader.position
        chunk = reader.read(bytes_max=2**22, records_max=1, over=True)
        read += [entry.payload for entry in chunk.entries]
        assert reader.position != before
    assert reader.headers["scaler"] == b"described"


def test_a_spool_that_is_removed_is_made_anew(tmp_path: Path) -> None:
    """After the data directory is deleted, the next record begins a new segment with the headers."""
    attempt = Attempt(tmp_path / "data")
    attempt.events(5)
    attempt.spool.look()
    shutil.rmtree(tmp_path / "data")
    attempt.events(2)
    attempt.spool.look()
    attempt.events(5)
    attempt.spool.look()
    attempt.finish()
    assert attempt.spool.remade == 1
    assert segments(attempt.spool.path) == [1]
    assert seqs_in(attempt.spool.path) == list(range(7, 13))
    assert sorted(path.name for path in attempt.spool.path.iterdir()) == [
        "000001.seg",
        "closed",
        "destination",
    ]


def test_a_spool_that_cannot_be_made_anew_waits_in_memory(tmp_path: Path) -> None:
    """If a file is in the way of a removed directory, records wait in memory until it is gone."""
    attempt = Attempt(tmp_path / "data")
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "data").write_text("in the way")
    attempt.spool.look()
    attempt.events(5)
    assert attempt.spool.kept == "memory"
    (tmp_path / "data").unlink()
    attempt.spool.close()
    assert seqs_in(attempt.spool.path) == list(range(5))


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """Appends continue while a file system of 1 MB is full, and all records are written once there is room."""
    small = tmp_path / "small"
    small.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "none", str(small)]
    if mount is None or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("no file system may be mounted here")
    try:
        attempt = Attempt(small)
        (small / "ballast").write_bytes(bytes(700_000))
        attempt.events(500, text="x" * 1000)
        assert (attempt.spool.kept, attempt.spool.why) == ("memory", os.strerror(errno.ENOSPC))
        (small / "ballast").unlink()
        attempt.spool.close()
        assert attempt.spool.failed == 0
        assert seqs_in(attempt.spool.path) == list(range(500))
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


HANGING = """
import os, sys, threading, time, warnings
import ampmon
from ampmon.client import current_run as process
write, main = os.write, threading.get_ident()
def hang(fd, data):
    if threading.get_ident() == main:
        time.sleep(0.3)
        return write(fd, data)
    threading.Event().wait()
ampmon.init(dir=sys.argv[1], mode="offline")
os.fdatasync = os.fsync = lambda fd: threading.Event().wait()
os.write = hang
many = {f"value {number}": 1.0 for number in range(1000)}
ampmon.log(many)
ampmon.log(many)
while process.current()._spool.trouble is None:
    time.sleep(0.01)
for _ in range(200):
    ampmon.log(many)
process.FINISH_DEADLINE_S = 0.5
"""


def test_a_process_ends_though_its_disk_hangs_for_ever(tmp_path: Path) -> None:
    """If every disk call hangs, the process warns, ends at its deadline and says what is lost."""
    ended = subprocess.run(
        [sys.executable, "-c", HANGING, str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert "the disk does not respond" in ended.stderr
    assert "before the process ended and are lost: the disk does not respond" in ended.stderr


FORKING = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {folder!r})
from doubles import ManualClock
from attempts import Attempt
from waiting import DEADLINE_S, wait_for
attempt = Attempt(Path(sys.argv[1]))
write = os.write
def refuse(fd, data):
    raise OSError(28, "full")
os.write = refuse
attempt.events(10)
child = os.fork()
os.write = write
if child == 0:
    attempt.spool.abandon()
    assert attempt.spool.waiting == 0
    assert not attempt.spool.append(b"from the child")
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
attempt.spool.close()
print(attempt.spool.path)
"""


def test_the_child_of_a_fork_forgets_what_waits_in_memory(tmp_path: Path) -> None:
    """Records that wait in memory at a fork are written once, by the parent."""
    script = FORKING.format(folder=str(Path(__file__).parents[1]))
    path = subprocess.check_output(
        [sys.executable, "-W", "ignore", "-c", script, str(tmp_path)], text=True, timeout=DEADLINE_S
    )
    assert seqs_in(Path(path.strip())) == list(range(10))
