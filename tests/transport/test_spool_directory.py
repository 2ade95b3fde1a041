"""The spool on a real file system: permissions, segments, cursors, full disks, forks and kills."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import resource
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from ampmon import wire
from ampmon.config import resolve
from ampmon.errors import SpoolError
from ampmon.identity import uuid7
from ampmon.spool import Destination, Position, SpoolWriter, frame, layout, segments
from ampmon.spool.layout import attempt_directory
from ampmon.spool.reader import Chunk, SpoolReader
from ampmon.spool.state import Cursor
from ampmon.spool.tail import SpoolTail
from attempts import BEGIN, Attempt, endless, killed, read_on, seqs_of
from doubles import ManualClock
from waiting import wait_for


def read_all(path: Path, start: Position = BEGIN) -> tuple[list[bytes], int]:
    return read_on(SpoolReader(path, start), bytes_max=10_000, records_max=50)


def encoded(count: int) -> list[bytes]:
    events = (wire.Event(stream="", seq=seq, time=0, kind="init") for seq in range(count))
    return [wire.encode(event) for event in events]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_spool_is_its_owner_s_only(tmp_path: Path) -> None:
    """Directories are created with mode 0700 and files with 0600, whatever the umask."""
    before = os.umask(0)
    try:
        attempt = Attempt(tmp_path / "data")
        attempt.events(3)
        attempt.spool.close()
        Cursor(segment=0, offset=1).write(attempt.spool.path, durable=True)
    finally:
        os.umask(before)
    assert {mode_of(path) for path in (tmp_path / "data").rglob("*") if path.is_file()} == {0o600}
    assert {mode_of(path) for path in tmp_path.rglob("*") if path.is_dir()} == {0o700}


def test_unwritable_directory_says_what_to_do(tmp_path: Path) -> None:
    """An unwritable data directory raises a SpoolError that names it and the remedy."""
    file = tmp_path / "file"
    file.write_text("in the way")
    with pytest.raises(SpoolError, match=r"file.* cannot be written .*AMPMON_DIR"):
        Attempt(file)


def test_segments_rotate_and_begin_with_the_newest_headers(tmp_path: Path) -> None:
    """The last segment alone gives the newest header of every key, so earlier segments can be removed."""
    attempt = Attempt(tmp_path, segment_bytes=2000)
    attempt.spool.header("a", b"old")
    attempt.spool.header("b", b"only")
    attempt.spool.header("a", b"new")
    attempt.events(100)
    attempt.spool.close()
    numbers = segments(attempt.spool.path)
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > 3
    assert seqs_of(read_all(attempt.spool.path)[0]) == list(range(100))
    reader = SpoolReader(attempt.spool.path, Position(numbers[-1], 0))
    reader.read(bytes_max=10_000, records_max=1, over=True)
    assert reader.headers["a"] == b"new"
    assert reader.headers["b"] == b"only"
    assert "attempt" in reader.headers


def test_a_segment_that_cannot_begin_is_not_tried_at_every_frame(tmp_path: Path) -> None:
    """After a failed try to begin a segment for a missing header, frames go on, and a try follows after more bytes."""
    attempt = Attempt(tmp_path)
    path = attempt_directory(tmp_path, later := uuid7())
    tail = SpoolTail(path, later, Destination.of(attempt.options), 64_000)
    blocked = layout.segment_path(path, 1)
    blocked.mkdir()  # no file can take its name
    tail.lacks_header()
    tail.write(b"first")
    tried = path.stat().st_mtime_ns
    for _ in range(10):
        tail.write(b"next")
    assert path.stat().st_mtime_ns == tried
    blocked.rmdir()
    tail.headers["key"] = b"header"
    for _ in range(2):
        tail.write(b"x" * 1000)
    assert segments(path) == [0, 1]
    tail.close()
    attempt.spool.close()


def test_a_removed_spool_that_cannot_be_recreated_yet(tmp_path: Path) -> None:
    """Until a removed spool is recreated, each frame tries that and raises, so none goes into a removed file."""
    attempt = Attempt(tmp_path)
    path = attempt_directory(tmp_path, later := uuid7())
    tail = SpoolTail(path, later, Destination.of(attempt.options), 64_000)
    layout.segment_path(path, 0).unlink()
    tail.look()
    blocked = layout.segment_path(path, 1)
    blocked.mkdir()  # no file can take its name
    for _ in range(2):
        with pytest.raises(OSError, match="irectory"):
            tail.write(b"refused")
    blocked.rmdir()
    tail.write(b"kept")
    tail.close()
    assert read_on(SpoolReader(path, Position(1, 0)))[0] == [b"kept"]
    attempt.spool.close()


@pytest.fixture(params=["some", "few", "any"])
def descriptors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the process have as many descriptors as now, or few, or say that it has no limit, as macOS may."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if request.param == "few":
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, limits[1]))
    elif request.param == "any":
        monkeypatch.setattr(os, "sysconf", lambda _: -1)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.usefixtures("descriptors")
def test_a_script_that_closes_all_descriptors_and_opens_its_own(tmp_path: Path) -> None:
    """If a script closes the spool's descriptors, frames go to a new segment. A file that the script then opens gets
    no frame and stays open, also where a process may have few descriptors."""
    attempt = Attempt(tmp_path)
    path = attempt_directory(tmp_path, later := uuid7())
    tail = SpoolTail(path, later, Destination.of(attempt.options), 64_000)
    tail.write(b"first")
    tail.lacks_header()  # the next segment begins
    tail.write(b"second")
    ours = [*tail._retired, tail._file[0]]
    for fd in ours:
        os.close(fd)
    own = [os.open(tmp_path / "own", os.O_CREAT | os.O_WRONLY | os.O_APPEND) for _ in range(9)]
    with pytest.raises(OSError, match="descriptor"):
        tail.write(b"refused")
    tail.write(b"kept")
    own += [os.open(tmp_path / "own", os.O_CREAT | os.O_WRONLY | os.O_APPEND) for _ in ours]
    tail.sync()
    tail.write(b"kept too")
    tail.close()
    assert read_all(path)[0] == [b"first", b"second", b"kept", b"kept too"]
    assert all(os.fstat(fd).st_size == 0 for fd in own)
    attempt.spool.close()


def test_names_are_synced_with_what_they_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first sync also syncs the destination and the directories. Later ones do so only for a new segment."""
    synced: list[Path] = []
    sync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: (synced.append(Path(f"/proc/self/fd/{fd}").readlink()), sync(fd))[1]
    )
    attempt = Attempt(tmp_path, segment_bytes=500)
    path = attempt.spool.path
    attempt.spool.sync()
    assert synced == [path / "destination", path, path.parent, tmp_path]
    attempt.events(1)
    attempt.spool.sync()
    assert synced.count(path) == 1
    attempt.events(20)
    attempt.spool.sync()

    assert synced.count(path) == 2
    assert len(segments(path)) > 1


def open_below(path: Path) -> list[Path]:
    """The files below a folder that this process has open, once for each descriptor."""
    files = [Path(os.path.realpath(each)) for each in Path("/proc/self/fd").iterdir()]
    return [each for each in files if each.is_relative_to(path)]


def test_a_sync_covers_and_closes_earlier_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync covers all segments since the last one, and leaves only the newest open. The end of a spool syncs too."""
    synced = list[Path]()
    monkeypatch.setattr(
        os, "fdatasync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink())
    )
    attempt = Attempt(tmp_path, segment_bytes=500)
    path = attempt.spool.path
    attempt.events(20)
    made = [layout.segment_path(path, number) for number in segments(path)]
    assert len(made) > 1
    attempt.spool.sync()
    assert sorted(synced) == made
    assert open_below(path) == made[-1:]
    attempt.spool.close()
    assert synced[len(made) :] == made[-1:]
    assert open_below(path) == []


def test_a_small_quota_makes_small_segments(tmp_path: Path) -> None:
    """A quota holds eight segments, because only delivered segments give room back."""
    options = resolve(dir=tmp_path, environment={})
    spool = SpoolWriter(
        tmp_path, uuid7(), Destination.of(options), quota_bytes=80_000, clock=ManualClock()
    )
    while spool.fullness < 1:
        assert spool.append(bytes(1000))
        spool.look()
    assert len(segments(spool.path)) >= 8
    spool.close()


def test_reader_resumes_at_any_record(tmp_path: Path) -> None:
    """A reader that starts at the end of any entry reads what follows and has the earlier headers."""
    attempt = Attempt(tmp_path, segment_bytes=1500)
    attempt.events(60)
    attempt.spool.close()
    reader = SpoolReader(attempt.spool.path, BEGIN)
    read = 0
    while (chunk := reader.read(bytes_max=10_000, records_max=7, over=True)).entries:
        read += len(chunk.entries)
        payloads, corrupt = read_all(attempt.spool.path, chunk.entries[-1].end)
        assert (seqs_of(payloads), corrupt) == (list(range(read, 60)), 0)
        resumed = SpoolReader(attempt.spool.path, chunk.entries[-1].end)
        assert resumed.headers == reader.headers
    assert read == 60


def test_records_larger_than_a_read_are_read(tmp_path: Path) -> None:
    """A record larger than the read limit is read whole and alone."""
    attempt = Attempt(tmp_path)
    attempt.event("init")
    attempt.event("init", text="x" * 5_000_000)
    attempt.event("init")
    reader = SpoolReader(attempt.spool.path, BEGIN)
    sizes = []
    while (chunk := reader.read(bytes_max=1000, records_max=10, over=False)).entries:
        sizes.append([len(entry.payload) > 1000 for entry in chunk.entries])
    assert sizes == [[False], [True], [False]]
    attempt.spool.close()


def test_cursor_that_cannot_be_read_begins_anew(tmp_path: Path) -> None:
    """A written cursor is read back, and an empty file means the beginning."""
    Cursor(segment=3, offset=17, rejected=2, finished=True).write(tmp_path, durable=True)
    assert Cursor.read(tmp_path).position == Position(3, 17)
    (tmp_path / "cursor").write_bytes(b"")
    assert Cursor.read(tmp_path) == Cursor(segment=0, offset=0)


def test_only_a_named_server_is_reached_by_the_environments_route(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Certificate authorities of the environment are for a server that the user named, not for the directory's own."""
    monkeypatch.setenv("SSL_CERT_FILE", "/etc/authorities.pem")
    own, named = (resolve(dir=tmp_path, url=url, environment={}) for url in (None, "https://x"))
    assert Destination.of(own).route.authorities is None
    assert Destination.of(named).route.authorities == "/etc/authorities.pem"


def test_token_shows_in_no_representation(tmp_path: Path) -> None:
    """A destination's representation does not show its token."""
    attempt = Attempt(tmp_path)
    destination = Destination(
        url="http://x",
        mode="online",
        process=Destination.of(attempt.options).process,
        token="geheim",
    )
    assert "geheim" not in f"{destination!r} {destination}"
    attempt.spool.close()


def test_an_interrupt_behind_a_write_spoils_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A KeyboardInterrupt after a write damages neither that record nor the next."""
    attempt = Attempt(tmp_path)
    records = encoded(3)
    write = os.write

    def interrupted(fd: int, data: bytes) -> int:
        write(fd, data)
        raise KeyboardInterrupt

    attempt.spool.append(records[0])
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            attempt.spool.append(records[1])
    attempt.spool.append(records[2])
    attempt.spool.close()
    assert read_all(attempt.spool.path) == (records, 0)


@pytest.mark.parametrize("nth", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("error", [FileNotFoundError, OSError])
def test_an_error_behind_a_rename_loses_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int, error: type[OSError]
) -> None:
    """If a file server reports an error for a rename that it has done, all records are still read."""
    renames, rename = itertools.count(1), os.replace

    def done(source: Path, target: Path) -> None:
        rename(source, target)
        if next(renames) == nth:
            raise error

    monkeypatch.setattr(os, "replace", done)
    attempt = Attempt(tmp_path, segment_bytes=1000)
    reader, seen = SpoolReader(attempt.spool.path, BEGIN), list[bytes]()
    records = encoded(100)
    for record in records:
        assert attempt.spool.append(record)
        chunk = reader.read(bytes_max=2**20, records_max=100, over=False)
        seen += [entry.payload for entry in chunk.entries]
    attempt.spool.close()
    rest, corrupt = read_all(attempt.spool.path, reader.position)
    assert (seen + rest, corrupt) == (records, 0)


class Late(bytes):
    """A record during whose first write a signal arrives."""

    arrived = False

    def __len__(self) -> int:
        if not self.arrived:
            self.arrived = True
            signal.raise_signal(signal.SIGUSR1)
        return super().__len__()


def test_what_a_signal_handler_raises_is_no_trouble_of_the_disk(tmp_path: Path) -> None:
    """A TimeoutError raised by a signal handler is not taken for a disk error, and the interrupted record is kept."""

    def handler(*_: object) -> None:
        raise TimeoutError

    attempt = Attempt(tmp_path)
    records = encoded(3)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        attempt.spool.append(records[0])
        assert attempt.spool.append(Late(records[1]))
        assert isinstance(attempt.spool.interrupted, TimeoutError)
        attempt.spool.append(records[2])
    finally:
        signal.signal(signal.SIGUSR1, before)
    attempt.spool.close()
    assert read_all(attempt.spool.path) == (records, 0)


def _append_beyond_limit(directory: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    attempt = Attempt(directory)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    size = (attempt.spool.path / "000000.seg").stat().st_size
    records = encoded(11)
    kept = [attempt.spool.append(record) for record in records[:1]]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, hard))
    kept += [attempt.spool.append(record) for record in records[1:6]]
    assert attempt.spool.kept == "memory"
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    kept += [attempt.spool.append(record) for record in records[6:]]
    attempt.spool.close()
    assert kept == [True] * 11
    assert read_all(attempt.spool.path) == (records, 0)


def test_a_write_in_part_is_taken_back_and_done_again(tmp_path: Path) -> None:
    """A partial write is undone and repeated, so all records are kept in order and without damage."""
    child = multiprocessing.get_context("fork").Process(
        target=_append_beyond_limit, args=(tmp_path,)
    )
    child.start()
    child.join()
    assert child.exitcode == 0


def test_append_after_close_is_counted(tmp_path: Path) -> None:
    """An append after close is rejected and counted, and raises nothing."""
    attempt = Attempt(tmp_path)
    attempt.finish()
    assert not attempt.spool.append(b"late")
    attempt.spool.close()
    assert attempt.spool.failed == 1


def test_a_record_too_long_for_a_frame_is_counted_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that no frame can hold is rejected, and later ones still go straight to disk."""
    monkeypatch.setattr(frame, "PAYLOAD_BYTES_MAX", 10)
    spool = Attempt(tmp_path, announced=False).spool
    assert [spool.append(b"x" * size) for size in (11, 10)] == [False, True]
    assert (spool.failed, spool.kept) == (1, "disk")
    spool.close()


def _abandon(attempt: Attempt) -> None:
    attempt.spool.abandon()
    assert not attempt.spool.append(b"from the child")


def test_forked_child_leaves_the_file_alone(tmp_path: Path) -> None:
    """After `abandon` in a forked child, the parent goes on and its file holds only its own records."""
    attempt = Attempt(tmp_path)
    attempt.events(3)
    child = multiprocessing.get_context("fork").Process(target=_abandon, args=(attempt,))
    child.start()
    child.join()
    assert child.exitcode == 0
    attempt.events(3)
    attempt.spool.close()
    assert read_all(attempt.spool.path)[1] == 0
    assert seqs_of(read_all(attempt.spool.path)[0]) == list(range(6))


@pytest.mark.parametrize("seed", range(3))
def test_kill_loses_no_record_whose_append_returned(tmp_path: Path, seed: int) -> None:
    """A process killed while it appends leaves every record whose append returned, in order."""
    attempt_id, kept = killed(tmp_path, random.Random(seed).randint(1, 3000))
    payloads, corrupt = read_all(attempt_directory(tmp_path, attempt_id))
    seqs = seqs_of(payloads)
    assert kept > 0
    assert seqs == list(range(len(seqs)))
    assert len(seqs) in (kept, kept + 1)
    assert corrupt <= 1


def test_reader_keeps_up_with_a_writer_that_is_at_work(tmp_path: Path) -> None:
    """Reading while another process appends gives each record once, in order and without damage."""
    with subprocess.Popen(endless(tmp_path), stdout=subprocess.PIPE, bufsize=0) as child:
        assert child.stdout is not None
        path = attempt_directory(tmp_path, UUID(child.stdout.readline().decode().strip()))
        reader = SpoolReader(path, BEGIN)
        chunks: list[Chunk] = []
        os.set_blocking(child.stdout.fileno(), False)

        def read_enough() -> bool:
            child.stdout.read(65536)
            chunks.append(reader.read(bytes_max=2**22, records_max=5000, over=False))
            return len(segments(path)) > 1 and sum(len(each.entries) for each in chunks) > 1000

        wait_for(read_enough)
        child.kill()
    seqs = seqs_of([entry.payload for chunk in chunks for entry in chunk.entries])
    assert len(segments(path)) > 1
    assert len(seqs) > 1000
    assert seqs == list(range(len(seqs)))
    assert sum(chunk.corrupt for chunk in chunks) == 0
