"""The sender with real processes, sockets and signals."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest

import scripts
from ampmon import sender, wire
from ampmon.errors import Refused
from ampmon.sender import election
from ampmon.sender.delivery import SpoolDelivery
from ampmon.sender.destination_worker import POLL_S, DestinationWorker
from ampmon.sender.loop import Loop
from ampmon.sender.statusfile import DestinationStatus, SenderStatus, token_id
from ampmon.spool import Destination, frame, spools
from ampmon.spool.state import Cursor
from ampmon.system import private
from ampmon_server.http.decoding import decode_batch
from attempts import DEAD, Attempt, end_sender, killed, seqs, working
from doubles import ManualClock, MemoryTransport
from http_server import HttpServer, QuietHandler
from recording_server import USUAL, RecordingServer, answer_for
from serving import free_port
from waiting import DEADLINE_S, wait_for


@pytest.fixture
def server() -> Iterator[RecordingServer]:
    with RecordingServer() as server:
        yield server


class SenderProcess:
    """`python -m ampmon.sender DIR` in the foreground, terminated at the end of the block."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ampmon.sender", str(directory)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> subprocess.Popen[bytes]:
        return self.process

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        output = self.process.communicate(timeout=DEADLINE_S)[0]
        assert output == b""


def test_one_sender_per_directory(tmp_path: Path, server: RecordingServer) -> None:
    """A second sender exits at once. After the first is killed, another takes its place."""
    attempt = Attempt(tmp_path, url=server.url)
    with SenderProcess(tmp_path) as first:
        wait_for(lambda: election.is_held(tmp_path))
        with SenderProcess(tmp_path) as second:
            assert second.wait(DEADLINE_S) == 0
        assert first.poll() is None
        first.kill()
        first.wait()
    assert not election.is_held(tmp_path)
    attempt.events(3)
    with SenderProcess(tmp_path):
        wait_for(lambda: seqs(server.store.records(attempt.id)) == [0, 1, 2])
    attempt.spool.close()


@pytest.mark.parametrize("sent", [0, 1])
def test_a_sender_makes_way_for_a_newer_one(
    tmp_path: Path, server: RecordingServer, monkeypatch: pytest.MonkeyPatch, sent: int
) -> None:
    """A sender ends if a running process writes records of a newer ampmon, also if a newer sender has sent some."""
    with monkeypatch.context() as patched:
        patched.setattr(frame, "VERSION", frame.VERSION + 1)
        newer = Attempt(tmp_path, url=server.url)
        newer.events(3)
    if sent:
        Cursor(segment=0, offset=sent).write(newer.spool.path, durable=False)
    with SenderProcess(tmp_path) as process:
        assert process.wait(DEADLINE_S) == 0
    assert Cursor.read(newer.spool.path).offset == sent
    newer.spool.close()


def test_records_that_only_a_newer_sender_can_read_hold_up_no_others(
    tmp_path: Path, server: RecordingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once their process is gone, a sender goes on with other spools, and its status says what it cannot read."""
    with monkeypatch.context() as patched:
        patched.setattr(frame, "VERSION", frame.VERSION + 1)
        newer = Attempt(tmp_path, url=server.url, process=DEAD)
        newer.events(3)
    Cursor(segment=0, offset=1).write(newer.spool.path, durable=False)
    with SenderProcess(tmp_path):
        wait_for(
            lambda: (status := sender.status(tmp_path)) and status.problem(server.url, newer.id)
        )
        other = Attempt(tmp_path, url=server.url)
        other.events(3)
        wait_for(lambda: seqs(server.store.records(other.id)) == [0, 1, 2])
    newer.leave()
    other.spool.close()


def test_records_ship_at_the_next_look(tmp_path: Path) -> None:
    """The sender looks at a spool 20 ms after it last found nothing, and sends each new record."""
    server, clock, attempt = MemoryTransport(), ManualClock(), Attempt(tmp_path)
    destination = Destination.of(attempt.options)
    worker = DestinationWorker(destination, server, clock, gone=lambda name: None)
    worker.add(SpoolDelivery(attempt.spool.path, destination, server, clock))
    for count in range(1, 21):
        attempt.event()
        assert worker.work()
        assert not worker.work()
        assert len(server.records(attempt.id)) == count
    assert POLL_S == 0.02
    attempt.spool.close()


def test_everything_arrives_once_when_the_server_comes_back(tmp_path: Path) -> None:
    """A server that starts late and is away for a while gets every record once and in order."""
    port = free_port()
    attempt = Attempt(tmp_path, url=f"http://127.0.0.1:{port}")
    attempt.events(2000)
    with SenderProcess(tmp_path):
        wait_for(lambda: (status := sender.status(tmp_path)) and status.problem(attempt.url))
        with RecordingServer(port) as server:
            wait_for(lambda: len(server.store.records(attempt.id)) == 2000)
        attempt.events(2000)
        with RecordingServer(port) as again:
            again.store = server.store
            again.planned.extend([(500, {}), (0, {}), (503, {"Retry-After": "0"}), (429, {})])
            again.store.lose_acks = 1
            attempt.events(2000)
            attempt.finish()
            wait_for(lambda: spools(tmp_path) == [])
    assert seqs(server.store.records(attempt.id)) == list(range(6001))
    assert server.store.ended(attempt.id) is None


def test_killed_trainer_is_delivered_to_its_last_record(
    tmp_path: Path, server: RecordingServer
) -> None:
    """All records that a killed trainer has appended arrive, then its attempt is marked as crashed."""
    with SenderProcess(tmp_path):
        attempt_id, kept = killed(tmp_path, 2000, server.url)
        wait_for(lambda: spools(tmp_path) == [])
    stored = seqs(server.store.records(attempt_id))
    assert len(stored) in (kept, kept + 1)
    assert stored == list(range(len(stored)))
    assert server.store.ended(attempt_id) == "crashed"


def test_killed_sender_loses_and_doubles_nothing(tmp_path: Path, server: RecordingServer) -> None:
    """Senders that are killed while sending lose no record and store none twice."""
    attempt = Attempt(tmp_path, url=server.url)
    for _ in range(4):
        with SenderProcess(tmp_path) as process:
            before = len(server.store.batches)
            attempt.events(500, text="x" * 500)
            wait_for(lambda before=before: len(server.store.batches) > before)
            attempt.events(1500, text="x" * 500)
            process.kill()
            process.wait()
    attempt.finish()
    with SenderProcess(tmp_path):
        wait_for(lambda: spools(tmp_path) == [])
    assert seqs(server.store.records(attempt.id)) == list(range(8001))


def test_sender_stays_five_seconds_without_work(tmp_path: Path) -> None:
    """Once the last trainer is delivered, the sender stays for five seconds, then ends and removes its status."""
    looks = 0

    def clock() -> float:
        nonlocal looks
        looks += threading.current_thread().name == "loop"  # not a thread that sends
        return now()

    def wait_for_looks() -> None:
        seen = looks
        wait_for(lambda: looks > seen + 20)

    now = ManualClock()
    Attempt(tmp_path).finish()
    with working(Loop(tmp_path, lambda destination: MemoryTransport(), clock=clock)) as thread:
        wait_for(lambda: spools(tmp_path) == [])
        wait_for_looks()  # the loop has seen that
        now.advance(4.9)
        wait_for_looks()
        assert thread.is_alive()
        now.advance(1.1)
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert sender.status(tmp_path) is None


def test_deleted_directory_ends_its_sender(tmp_path: Path, server: RecordingServer) -> None:
    """After its data directory is deleted a sender ends, and a new one serves the new directory."""
    directory = tmp_path / "data"
    lost = Attempt(directory, url=server.url)
    with SenderProcess(directory) as old:
        wait_for(lambda: sender.status(directory))
        shutil.rmtree(directory)
        fresh = Attempt(directory, url=server.url)
        assert old.wait(DEADLINE_S) == 0
    with SenderProcess(directory):
        fresh.events(3)
        wait_for(lambda: seqs(server.store.records(fresh.id)) == [0, 1, 2])
    for attempt in (lost, fresh):
        attempt.spool.close()


def test_terminated_sender_ends_cleanly(tmp_path: Path, server: RecordingServer) -> None:
    """SIGTERM ends the sender with exit code 0 although a trainer lives. It logs it and leaves no status or lock."""
    attempt = Attempt(tmp_path, url=server.url)
    with SenderProcess(tmp_path) as process:
        wait_for(lambda: sender.status(tmp_path))
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    assert "ends" in (election.home(tmp_path) / "log").read_text()
    assert sender.status(tmp_path) is None
    assert not election.is_held(tmp_path)
    attempt.spool.close()


INTERRUPTED_IN_A_WAIT = """
import os, signal, sys, threading
from ampmon.sender.__main__ import main

def trace(frame, event, _):
    # Event.wait holds the event's lock here.
    if frame.f_code is threading.Condition.wait.__code__:
        sys.settrace(None)
        os.kill(os.getpid(), signal.SIGTERM)

sys.settrace(trace)
sys.exit(main(sys.argv[1:]))
"""


def test_a_signal_in_the_midst_of_a_wait_ends_the_sender(tmp_path: Path) -> None:
    """SIGTERM ends the sender cleanly even while it holds the lock of its own stop event."""
    attempt = Attempt(tmp_path, url=f"http://127.0.0.1:{free_port()}")
    attempt.events(3)
    scripts.run("-c", INTERRUPTED_IN_A_WAIT, str(tmp_path), preload="torch")
    attempt.spool.close()


def test_sender_loads_no_torch() -> None:
    """The sender's process loads no torch and no numpy. The part that a trainer imports loads no urllib3 either."""
    for statement, absent in (
        ("import ampmon.sender.__main__, ampmon.sender.loop", {"torch", "numpy"}),
        ("import ampmon.sender", {"torch", "numpy", "urllib3"}),
    ):
        program = f"{statement}\nimport sys; print(*sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True
        )
        assert not absent & set(done.stdout.split())


def test_ensure_running_starts_one_that_is_nobody_s_child(
    tmp_path: Path, server: RecordingServer
) -> None:
    """The started sender is no child of the trainer, has its own session and low priority, and delivers the records."""
    attempt = Attempt(tmp_path, url=server.url)
    for _ in range(3):
        sender.ensure_running(tmp_path)
    status = wait_for(lambda: sender.status(tmp_path))
    stat = Path(f"/proc/{status.pid}/stat").read_text().rpartition(")")[2].split()
    parent, session, niceness = int(stat[1]), int(stat[3]), int(stat[16])
    assert parent != os.getpid()
    assert session != os.getsid(0)
    assert niceness >= 10
    streams = {os.readlink(f"/proc/{status.pid}/fd/{number}") for number in range(3)}
    assert streams == {"/dev/null"}
    attempt.events(5)
    attempt.finish()
    assert sender.wait_until_sent(tmp_path, attempt.id, DEADLINE_S)
    assert seqs(server.store.records(attempt.id)) == list(range(6))
    end_sender(tmp_path)


def end_sender_thread(directory: Path) -> None:
    """Delete the lock file, at which a sender ends. Fail if a process still holds the lock then."""
    path = election.home(directory) / "lock"
    with path.open("rb") as file:
        path.unlink()
        wait_for(lambda: "ampmon sender" not in {each.name for each in threading.enumerate()})
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_thread_does_it_where_no_process_can_be_started(
    tmp_path: Path, server: RecordingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the executable is not Python, as in an embedded interpreter, a thread of this process sends."""
    monkeypatch.setattr(sys, "executable", "/usr/bin/simulator")
    attempt = Attempt(tmp_path, url=server.url)
    attempt.events(3)
    sender.ensure_running(tmp_path)
    wait_for(lambda: len(server.store.records(attempt.id)) == 3)
    status = sender.status(tmp_path)
    assert status is None or status.pid == os.getpid()
    attempt.finish()
    assert sender.wait_until_sent(tmp_path, attempt.id, DEADLINE_S)
    end_sender_thread(tmp_path)


def test_forked_child_does_not_keep_the_office(
    tmp_path: Path, server: RecordingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker forked from a process with a sender thread does not hold the lock after that thread ends."""
    monkeypatch.setattr(sys, "executable", "/usr/bin/simulator")
    attempt = Attempt(tmp_path, url=server.url)
    sender.ensure_running(tmp_path)
    wait_for(lambda: sender.status(tmp_path))
    worker = multiprocessing.get_context("fork").Process(target=signal.pause)
    worker.start()
    end_sender_thread(tmp_path)
    assert worker.is_alive()
    worker.kill()
    worker.join()
    attempt.spool.close()


def test_ensure_running_never_raises(tmp_path: Path) -> None:
    """`ensure_running` does not raise if the data directory is a file."""
    file = tmp_path / "file"
    file.write_text("")
    sender.ensure_running(file)
    assert file.read_text() == ""


def test_finish_does_not_wait_for_a_server_that_is_away(tmp_path: Path) -> None:
    """`wait_until_sent` returns False without waiting if the sender knows that the server is away."""
    attempt = Attempt(tmp_path, url=f"http://127.0.0.1:{free_port()}")
    attempt.event()
    with SenderProcess(tmp_path):
        wait_for(lambda: (status := sender.status(tmp_path)) and status.problem(attempt.url))
        assert not sender.wait_until_sent(tmp_path, attempt.id, 86_400.0)
    attempt.spool.close()


def test_server_that_hangs_holds_up_no_other(tmp_path: Path) -> None:
    """While one destination hangs, another gets its records."""

    class Hanging(MemoryTransport):
        def send(self, batch: bytes) -> wire.Ack:
            released.wait(DEADLINE_S)
            return super().send(batch)

    released = threading.Event()
    transports = {"http://hangs": Hanging(), "http://works": MemoryTransport()}
    attempts = [Attempt(tmp_path, url=url) for url in transports]
    with working(Loop(tmp_path, lambda destination: transports[destination.url])):
        for attempt in attempts:
            attempt.events(10)
        wait_for(lambda: len(transports["http://works"].records(attempts[1].id)) == 10)
        assert transports["http://hangs"].records(attempts[0].id) == []
        released.set()
        wait_for(lambda: len(transports["http://hangs"].records(attempts[0].id)) == 10)
    for attempt in attempts:
        attempt.spool.close()


def test_a_spool_made_anew_is_sent_beside_others_that_live(tmp_path: Path) -> None:
    """Records written after a spool was removed arrive, while the sender also serves another writer."""
    server = MemoryTransport()
    removed, other = Attempt(tmp_path), Attempt(tmp_path)
    with working(Loop(tmp_path, lambda destination: server)):
        for attempt in (removed, other):
            attempt.events(3)
            wait_for(lambda of=attempt.id: len(server.records(of)) == 3)
        shutil.rmtree(removed.spool.path)
        for more in (1, 2):  # by then the sender has looked at all spools and found this one gone
            other.events(1)
            wait_for(lambda more=more: len(server.records(other.id)) == 3 + more)
        removed.spool.look()
        removed.events(5)
        assert removed.spool.remade == 1
        wait_for(lambda: seqs(server.records(removed.id)) == list(range(8)))
    for attempt in (removed, other):
        attempt.spool.close()


def test_a_spool_that_could_not_be_opened_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender short of file descriptors sends other spools, and that one once it can be opened."""
    server, clock = MemoryTransport(), ManualClock()
    attempts = [Attempt(tmp_path) for _ in range(2)]
    short = {attempts[0].spool.path}

    def opened(path: Path, *args: Any) -> SpoolDelivery:
        if path in short:
            raise OSError(errno.EMFILE, "Too many open files")
        return SpoolDelivery(path, *args)

    monkeypatch.setattr("ampmon.sender.loop.SpoolDelivery", opened)
    with working(Loop(tmp_path, lambda destination: server, clock=clock)):
        for attempt in attempts:
            attempt.events(3)
        wait_for(lambda: len(server.records(attempts[1].id)) == 3)
        short.clear()
        clock.advance(16.0)
        wait_for(lambda: len(server.records(attempts[0].id)) == 3)
    for attempt in attempts:
        attempt.spool.close()


def test_a_server_that_nothing_goes_to_any_more_is_let_go(tmp_path: Path) -> None:
    """A destination that has no spool any more loses its thread, and later records to it still arrive."""
    urls, clock = ("http://left", "http://used"), ManualClock()
    transports = {url: MemoryTransport() for url in urls}
    used, left = Attempt(tmp_path, url=urls[1]), Attempt(tmp_path, url=urls[0], process=DEAD)
    left.leave()

    def moved_on() -> bool:
        clock.advance(10.0)
        return _threads_to(*urls) == {urls[1]}

    with working(Loop(tmp_path, lambda destination: transports[destination.url], clock=clock)):
        wait_for(lambda: transports[urls[0]].ended(left.id) == "crashed")
        assert _threads_to(*urls) == set(urls)
        wait_for(moved_on)
        again = Attempt(tmp_path, url=urls[0])
        again.events(3)
        wait_for(lambda: seqs(transports[urls[0]].records(again.id)) == [0, 1, 2])
    assert _threads_to(*urls) == set()
    for attempt in (used, again):
        attempt.spool.close()


class Choosy(MemoryTransport):
    """A server that rejects whatever one attempt sends, and has no page open."""

    def __init__(self, rejected: UUID) -> None:
        super().__init__()
        self.watched, self._rejected = False, rejected

    def send(self, batch: bytes) -> wire.Ack:
        if decode_batch(batch).attempt_id == self._rejected:
            raise Refused("there is no such run", 404)
        return super().send(batch)


@pytest.mark.parametrize("beside", ["silent", "without header", "rejected"])
def test_a_run_without_viewers_is_sent_in_few_batches(tmp_path: Path, beside: str) -> None:
    """While no page is open, slow records share a batch, also beside a spool that has nothing or cannot be sent."""
    other = Attempt(tmp_path, announced=beside != "without header")
    attempt = Attempt(tmp_path)
    if beside == "rejected":
        other.finish()
    transport = Choosy(other.id if beside == "rejected" else uuid4())
    with working(Loop(tmp_path, lambda _: transport)):
        attempt.event()
        wait_for(lambda: transport.records(attempt.id))
        for _ in range(50):
            time.sleep(2 * POLL_S)
            attempt.event()
            sizes = [len(batch.records) for batch in transport.batches if batch.records]
            if max(sizes) > 5:
                break
        attempt.finish()
        wait_for(lambda: not attempt.spool.path.exists())
    assert sizes[0] == 1
    assert max(sizes) > 5
    other.spool.close()


def test_what_senders_elsewhere_left_goes_after_a_month(tmp_path: Path) -> None:
    """Files of a machine without a sign of life for a month are removed. Others and the sender's own stay."""
    old_s = time.time() - 31 * 86400
    homes = [tmp_path / "senders" / name for name in ("gone", "killed", "works", "began")]
    for home in (*homes, election.home(tmp_path)):
        home.mkdir(parents=True)
        names = ("lock", "log") if home.name in {"gone", "began"} else ("lock", "log", "status")
        for path in (*(home / name for name in names), home):
            path.touch()
            os.utime(path, (old_s, old_s))
    (homes[2] / "status").touch()
    (homes[3] / "log").touch()
    stop = threading.Event()
    stop.set()
    Loop(tmp_path, lambda destination: MemoryTransport()).run(stop)
    left = {home.name for home in (tmp_path / "senders").iterdir()}
    assert left == {"works", "began", election.home(tmp_path).name}
    assert (election.home(tmp_path) / "lock").exists()


def _threads_to(*urls: str) -> set[str]:
    names = {thread.name for thread in threading.enumerate()}
    return {url for url in urls if f"ampmon to {url}" in names}


def test_status_tells_what_waits_and_why(tmp_path: Path) -> None:
    """The status has the server's problem and the waiting bytes, and clears afterwards, though a record is rejected."""
    server = MemoryTransport()
    server.down = True
    attempt = Attempt(tmp_path)
    attempt.events(10)

    with working(Loop(tmp_path, lambda destination: server)):
        status = wait_for(
            lambda: (found := sender.status(tmp_path)) and found.problem(attempt.url) and found
        )
        assert status.problem(attempt.url) == "the server is down"
        assert status.problem("http://elsewhere") is None
        assert status.destinations[0].waiting_bytes > 0
        server.refuse = lambda record: record.seq == 3
        server.down = False
        status = wait_for(
            lambda: (
                (found := sender.status(tmp_path))
                and not found.destinations[0].waiting_bytes
                and found
            )
        )
        assert status.problem(attempt.url) is None
        assert Cursor.read(attempt.spool.path).rejected == 1
    attempt.spool.close()


class Taking(QuietHandler):
    """Acknowledges every batch and keeps nothing."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(answer_for(self.path, USUAL))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(b'{"acked":{"":0},"version":1}')

    def _answer(self, answer: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


@pytest.mark.parametrize(
    ("age_s", "token", "problem"),
    [(0, "mine", "down"), (0, "another", None), (60, "mine", None), (-60, "mine", None)],
)
def test_a_status_is_of_now_and_of_one_token(
    tmp_path: Path, age_s: float, token: str, problem: str | None
) -> None:
    """A server's problem is known for the token that it is about, while its status is neither old nor of the future."""
    server = DestinationStatus(
        url="u",
        token_id=token_id("mine"),
        problem="down",
        waiting_bytes=0,
    )
    private.make(election.home(tmp_path))
    updated = int((time.time() - age_s) * 1e6)
    SenderStatus(pid=1, updated=updated, destinations=(server,)).write(tmp_path)
    status = sender.status(tmp_path)
    assert (status and status.problem("u", token=token)) == problem


def test_a_sender_that_does_not_come_up_is_started_again_and_then_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start has some seconds to take the lock. After a few starts that did not, a thread sends."""
    clock, done = ManualClock(), list[str]()
    monkeypatch.setattr(sender, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(sender, "_start_process", lambda path: done.append("process") or True)
    monkeypatch.setattr(sender, "_run_in_thread", lambda path: done.append("thread"))
    for _ in range(sender._STARTS_MAX + 1):
        sender.ensure_running(tmp_path)
        sender.ensure_running(tmp_path)
        clock.advance(sender._STARTING_S)
    wait_for(lambda: "thread" in done)
    assert done == ["process"] * sender._STARTS_MAX + ["thread"]


def test_memory_does_not_grow_with_what_waits_nor_with_where_it_goes(tmp_path: Path) -> None:
    """A backlog of large records for four servers is sent within 60 MB of memory."""
    peaks_kb = []
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            server = stack.enter_context(HttpServer(Taking))
            attempt = Attempt(tmp_path, url=f"http://{server.netloc}", process=DEAD)
            attempt.events(160, text=os.urandom(30_000).hex())
            attempt.leave()
        process = stack.enter_context(SenderProcess(tmp_path))

        def is_sent() -> bool:
            status = Path(f"/proc/{process.pid}/status").read_text()
            peaks_kb.append(int(status.partition("VmHWM:")[2].split()[0]))
            return not spools(tmp_path)

        wait_for(is_sent)
    assert 20_000 < max(peaks_kb) < 60_000
