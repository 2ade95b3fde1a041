"""`ampmon sync` with real processes, directories and servers, and without the server's packages."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from ampmon import wire
from ampmon.identity.process import this_process
from ampmon.sender import election
from ampmon.sender.adoption import SILENT_S, take
from ampmon.spool import Destination, spools
from ampmon.spool.layout import claim
from ampmon_server.client.sync import Sync
from attempts import DEAD, Attempt, seqs
from certificates import Authority
from doubles import ManualClock, MemoryTransport
from recording_server import RecordingServer
from serving import Server
from typed import typed
from waiting import DEADLINE_S, wait_for
from warm import start


STRANGER = msgspec.structs.replace(DEAD, host="a-machine-that-died", boot_id="of that machine")
WITHOUT = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
from ampmon_server.cli import main
sys.exit(main({arguments!r}))
"""
SERVER_S = (
    "alembic",
    "fastapi",
    "plotly",
    "rich",
    "sqlalchemy",
    "starlette",
    "torch",
    "uvicorn",
    "zstandard",
)


@pytest.fixture
def server() -> Iterator[RecordingServer]:
    with RecordingServer() as server:
        yield server


def ampmon(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `ampmon` in this process."""
    done = typed(*arguments)
    return subprocess.CompletedProcess(arguments, done.code, done.out, done.err)


def with_base_dependencies(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `ampmon` in its own process, where only the base dependencies can be imported."""
    program = WITHOUT.format(packages=SERVER_S, arguments=[str(each) for each in arguments])
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def left_behind(directory: Path, url: str, count: int = 3, **options: object) -> Attempt:
    """An attempt with ``count`` records, whose process is gone."""
    attempt = Attempt(directory, url=url, **{"process": DEAD, **options})  # type: ignore[arg-type]
    attempt.events(count, text="x" * 500)
    attempt.leave()
    return attempt


def silent(path: Path) -> None:
    then_s = time.time() - SILENT_S - 1
    for each in (*path.iterdir(), path):
        os.utime(each, (then_s, then_s))


def test_everything_is_sent_and_a_second_call_finds_nothing(
    tmp_path: Path, server: RecordingServer
) -> None:
    """Online and offline spools are sent with base dependencies only, and a second call says that nothing is left."""
    attempts = [left_behind(tmp_path, server.url, mode=mode) for mode in ("online", "offline")]
    done = with_base_dependencies("sync", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "6 records sent; nothing is left" in done.stdout
    for attempt in attempts:
        assert seqs(server.store.records(attempt.id)) == [0, 1, 2]
        assert server.store.ended(attempt.id) == "crashed"
    assert spools(tmp_path) == []
    again = ampmon("sync", tmp_path)
    assert (again.returncode, again.stdout) == (0, "nothing is left to send\n")


def test_a_copy_from_a_machine_that_died_goes_to_another_server(
    tmp_path: Path, server: RecordingServer
) -> None:
    """A copied directory, or a single spool of it, is sent to --url instead of its recorded address."""
    server.token = "t0ken"
    (tmp_path / "token-of-it").write_text("t0ken\n")
    attempts = [
        left_behind(tmp_path / "data", "http://127.0.0.1:9", process=STRANGER) for _ in range(2)
    ]
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    for copied in spools(tmp_path / "copy"):
        silent(copied)
    to = ("--url", server.url, "--token-file", tmp_path / "token-of-it")
    first = ampmon("sync", tmp_path / "copy" / "spool" / attempts[0].id.hex, *to)
    assert first.returncode == 0, first.stderr
    assert server.store.records(attempts[1].id) == []
    assert ampmon("sync", tmp_path / "copy", *to).returncode == 0
    for attempt in attempts:
        assert seqs(server.store.records(attempt.id)) == [0, 1, 2]
        assert server.store.ended(attempt.id) == "crashed"
    assert spools(tmp_path / "copy") == []
    assert len(spools(tmp_path / "data")) == 2


def test_a_stranger_heard_of_lately_is_sent_and_kept(
    tmp_path: Path, server: RecordingServer
) -> None:
    """A recently written spool of another machine is sent and kept, and its attempt does not end."""
    attempt = left_behind(tmp_path, server.url, process=STRANGER)
    done = ampmon("sync", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "kept for now" in done.stdout
    assert seqs(server.store.records(attempt.id)) == [0, 1, 2]
    assert server.store.ended(attempt.id) is None
    assert spools(tmp_path) == [attempt.spool.path]


def test_a_silent_stranger_whose_sender_works_is_sent_and_kept(
    tmp_path: Path, server: RecordingServer
) -> None:
    """A silent spool of another machine is sent and kept while that machine's sender works."""
    attempt = left_behind(tmp_path, server.url, process=STRANGER)
    silent(attempt.spool.path)
    status = tmp_path / "senders" / STRANGER.place() / "status"
    status.parent.mkdir(parents=True)
    status.write_text("{}")
    assert ampmon("sync", tmp_path).returncode == 0
    assert seqs(server.store.records(attempt.id)) == [0, 1, 2]
    assert spools(tmp_path) == [attempt.spool.path]


def test_a_token_that_is_missing_is_asked_for(tmp_path: Path) -> None:
    """If the server does not know the token, the error names --token-file."""
    with RecordingServer(token="another") as server:
        left_behind(tmp_path, server.url)
        done = ampmon("sync", tmp_path)
    assert done.returncode == 1
    assert "--token-file" in done.stderr


def test_a_token_goes_to_no_server_that_only_a_spool_names(
    tmp_path: Path, new_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """AMPMON_TOKEN and the user's token file are sent only to a server the user names. A spool's own token is sent."""
    authority = Authority(tmp_path)
    cert, key = authority.issue()
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    tls = ["--tls-cert", str(cert), "--tls-key", str(key)]
    server = new_server(options=tls, ca=authority.file)  # on the user's own data directory
    monkeypatch.setenv("AMPMON_TOKEN", server.token)
    with_token, without_token = (
        tmp_path / "with_token",
        server.directory / "without_token",
    )  # the user's token file is above it
    for directory in (with_token, without_token):
        left = left_behind(directory, server.url)
        (directory / "token").unlink()
        token = server.token if directory is with_token else None
        Destination(url=server.url, mode="online", process=DEAD, token=token).write(left.spool.path)
    assert ampmon("sync", with_token).returncode == 0
    kept = ampmon("sync", without_token)
    assert (kept.returncode, server.get("/runs")["total"]) == (1, 1)
    assert f"your token was not sent to '{server.url}', because only a spool names" in kept.stderr
    monkeypatch.setenv("AMPMON_URL", server.url)
    assert ampmon("sync", without_token).returncode == 0
    assert server.get("/runs")["total"] == 2


def test_what_is_left_is_said_with_the_reason(tmp_path: Path, server: RecordingServer) -> None:
    """An absent server, a rejected record and a spool without a header are each reported with exit code 1."""
    left_behind(tmp_path / "away", "http://127.0.0.1:9")
    away = ampmon("sync", tmp_path / "away")
    assert away.returncode == 1
    assert "connection refused" in away.stdout
    assert "check that the server runs, then run it again" in away.stderr
    attempt = left_behind(tmp_path / "refused", server.url)
    server.store.refuse = lambda record: record.seq == 1
    refused = ampmon("sync", tmp_path / "refused")
    assert refused.returncode == 1
    assert "1 refused" in refused.stdout
    assert seqs(server.store.records(attempt.id)) == [0, 2]
    assert ampmon("sync", tmp_path / "refused").returncode == 0
    left_behind(tmp_path / "nameless", server.url, announced=False)
    nameless = ampmon("sync", tmp_path / "nameless")
    assert nameless.returncode == 1
    assert "it does not name its run" in nameless.stdout


def test_rejected_records_are_named_also_those_of_an_earlier_sender(
    tmp_path: Path, server: RecordingServer
) -> None:
    """A spool that is kept for an earlier sender's rejected records says so, and one whose file is full does too."""
    earlier = left_behind(tmp_path, server.url)
    (earlier.spool.path / "rejected").touch()
    kept = ampmon("sync", tmp_path)
    assert kept.returncode == 0
    assert "3 records sent (rejected records are in " in kept.stdout
    full = left_behind(tmp_path, server.url)
    destination = Destination.read(full.spool.path)
    assert destination is not None
    msgspec.structs.replace(destination, bytes_max=0).write(full.spool.path)
    server.store.refuse = lambda record: record.seq == 1
    assert (
        "in the file `rejected`, which is full and lacks 1 of them"
        in ampmon("sync", tmp_path).stdout
    )


def test_without_a_home_directory_commands_need_only_the_named_one(
    tmp_path: Path, server: RecordingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user without a home directory, as in a container, can use a named directory. Otherwise one line names it."""

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    left_behind(tmp_path, server.url)
    bare = left_behind(tmp_path / "bare", server.url)
    token = (tmp_path / "bare" / "token").read_text()
    (tmp_path / "bare" / "token").unlink()
    monkeypatch.setattr(Path, "home", home)
    monkeypatch.delenv("AMPMON_DIR", raising=False)
    assert ampmon("sync", tmp_path).returncode == 0
    asked = ampmon("sync", tmp_path / "bare")
    assert (asked.returncode, "pass the server's token" in asked.stderr) == (1, True), asked.stderr
    monkeypatch.setenv("AMPMON_TOKEN", token.strip())
    assert ampmon("sync", tmp_path / "bare").returncode == 0
    assert seqs(server.store.records(bare.id)) == [0, 1, 2]
    nowhere = ampmon("sync")
    assert nowhere.returncode == 2
    assert nowhere.stderr.startswith("ampmon sync: there is no home directory: set AMPMON_DIR")


def test_what_cannot_be_begun_is_said(tmp_path: Path) -> None:
    """A missing directory, one without spools and an invalid address each give exit code 2 and one line of error."""
    for arguments in (("nowhere",), (".",), (".", "--url", "localhost")):
        done = ampmon("sync", tmp_path / arguments[0], *arguments[1:])
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.startswith("ampmon sync: ")
        assert done.stderr.count("\n") == 1


def test_a_killed_sync_is_gone_on_with(tmp_path: Path, server: RecordingServer) -> None:
    """A sync killed several times continues where it stopped, and every record is stored once."""
    attempt = Attempt(tmp_path, url=server.url, process=DEAD, segment_bytes=2**20)
    attempt.events(14_000, text="x" * 4000)  # fourteen batches
    attempt.leave()
    room = 0

    def held(_: object) -> bool:
        wait_for(lambda: len(server.store.batches) < room)
        return False

    server.store.refuse = held
    for number in (signal.SIGKILL, signal.SIGINT, signal.SIGKILL):
        # Few batches are let through, one perhaps of the process before, so that no process is done before its signal.
        before = len(server.store.batches)
        room = before + 3
        process = start(["sync", str(tmp_path)], tmp_path / "log")
        wait_for(lambda before=before: len(server.store.batches) >= before + 2)
        process.send_signal(number)
        room = sys.maxsize  # an interrupted process waits for the answer to its last batch
        assert process.wait(DEADLINE_S) != 0
    taken = spools(tmp_path)
    assert len(taken) == 1
    assert taken[0] != attempt.spool.path
    done = ampmon("sync", tmp_path)
    assert done.returncode == 0, done.stdout
    assert seqs(server.store.records(attempt.id)) == list(range(14_000))
    assert spools(tmp_path) == []


def test_several_at_once_send_once_what_one_would(tmp_path: Path, server: RecordingServer) -> None:
    """Simultaneous calls lose no record and store none twice."""
    attempts = [left_behind(tmp_path, server.url, 2000) for _ in range(4)]
    log = tmp_path / "log"
    calls = [start(["sync", str(tmp_path)], log) for _ in range(3)]
    assert {call.wait(DEADLINE_S) for call in calls} <= {0, 1}
    assert "Traceback" not in log.read_text()
    for attempt in attempts:
        assert seqs(server.store.records(attempt.id)) == list(range(2000))
    assert spools(tmp_path) == []


def test_beside_a_sender_at_work_it_leaves_the_living_alone(tmp_path: Path) -> None:
    """While this machine's sender works, sync sends only spools of dead processes and leaves the living ones' to it."""
    server = MemoryTransport()
    living, dead = Attempt(tmp_path), left_behind(tmp_path, "http://127.0.0.1:9")
    living.events(2)
    offline = Attempt(tmp_path / "offline", mode="offline")  # that sender leaves it to sync
    offline.events(2)
    destination = Destination.read(offline.spool.path)
    assert destination is not None
    assert take(offline.spool.path, destination, sender_at_work=True).exists()
    offline.spool.close()
    office = election.elect(tmp_path)
    assert office is not None
    outcomes = list(Sync(spools(tmp_path), lambda destination: server).run())
    assert "its sender is running" in (outcomes[0].problem or "")
    assert (outcomes[1].records, outcomes[1].problem) == (3, None)
    office.resign()
    outcomes = list(Sync(spools(tmp_path), lambda destination: server).run())
    assert [outcome.records for outcome in outcomes] == [2]
    assert spools(tmp_path) == [living.spool.path]
    assert seqs(server.records(dead.id)) == [0, 1, 2]
    living.spool.close()


def test_of_a_process_that_goes_on_writing_it_sends_what_is_there(tmp_path: Path) -> None:
    """Sync sends what a spool holds and does not wait for a process that goes on writing."""
    living, ended = (Attempt(tmp_path, mode="offline") for _ in range(2))

    class Slow(MemoryTransport):
        def send(self, batch: bytes) -> wire.Ack:
            if living.seq < 100:
                living.events(1)
            return super().send(batch)

    server = Slow()
    living.events(3)
    ended.events(3)
    first, second = Sync(spools(tmp_path), lambda destination: server).run()
    assert (first.records, first.problem, first.kept) == (3, None, "its process is still writing")
    assert first.left_bytes > 0
    assert (second.records, second.problem, second.left_bytes) == (3, None, 0)
    assert seqs(server.records(living.id)) == [0, 1, 2]
    living.spool.close()
    ended.spool.close()


def test_what_a_living_process_took_over_is_left_to_it(tmp_path: Path) -> None:
    """A spool that another process of this machine has claimed is not taken from it."""
    left_behind(tmp_path, "http://127.0.0.1:9")
    (path,) = spools(tmp_path)
    claimed = claim(path)
    assert claimed is not None
    of_init = claimed.name.replace(f"~{os.getpid()}_{this_process().started}_", "~1_0_")
    moved = claimed.rename(claimed.with_name(of_init))
    (outcome,) = Sync([moved], lambda destination: MemoryTransport()).run()
    assert "process 1 of" in (outcome.problem or "")
    assert spools(tmp_path) == [moved]


def test_a_server_that_is_away_is_tried_once_for_all_spools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each spool of a server that does not answer is reported with the reason, but only the first tries it."""
    monkeypatch.setattr("ampmon_server.client.sync.TRIES", 1)
    for _ in range(2):
        left_behind(tmp_path, "http://127.0.0.1:9")
    server = MemoryTransport()
    server.down = True
    outcomes = list(Sync(spools(tmp_path), lambda destination: server).run())
    assert [outcome.problem for outcome in outcomes] == [outcomes[0].problem] * 2
    assert server.attempts == 1


def test_a_spool_whose_server_is_unknown_is_said(tmp_path: Path) -> None:
    """A spool without the file `destination` stays, with the reason."""
    attempt = left_behind(tmp_path, "http://127.0.0.1:9")
    (attempt.spool.path / "destination").unlink()
    (outcome,) = Sync(spools(tmp_path), lambda destination: MemoryTransport()).run()
    assert "the file `destination` is missing" in (outcome.problem or "")


def test_a_server_that_stumbles_is_asked_again(tmp_path: Path, server: RecordingServer) -> None:
    """A reset, a 503, a 500 and a lost acknowledgement are retried."""
    attempt = left_behind(tmp_path, server.url)
    server.planned.extend([(0, {}), (503, {"Retry-After": "0"}), (500, {})])
    server.store.lose_acks = 1
    assert ampmon("sync", tmp_path).returncode == 0
    assert seqs(server.store.records(attempt.id)) == [0, 1, 2]


def test_a_terminal_gets_a_bar(tmp_path: Path, server: RecordingServer) -> None:
    """A terminal gets a progress line with records and rate, which is erased at the end."""
    left_behind(tmp_path, server.url, 20_000)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "ampmon_server.cli", "sync", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            try:
                seen += os.read(ours, 65536)
            except OSError:
                break
        assert process.stdout is not None
        said = process.stdout.read().decode()
    os.close(ours)
    assert process.returncode == 0
    assert " records, " in seen.decode()
    assert " MB/s, " in seen.decode()
    assert seen.endswith(b"\r")
    assert "20,000 records sent; nothing is left" in said


def test_the_real_server_takes_what_is_synced(
    tmp_path: Path, new_server: Callable[..., Server]
) -> None:
    """One call delivers the offline records of a dead process to a real server, which marks the run as crashed."""
    directory = tmp_path / "ampmon"
    server = new_server(directory)
    attempt = left_behind(directory, server.url, mode="offline")
    done = ampmon("sync", directory)
    assert done.returncode == 0, done.stdout + done.stderr
    assert server.get(f"/runs/{attempt.run}")["status"] == "crashed"
    assert len(server.get(f"/runs/{attempt.run}/events")["events"]) == 3


def test_a_copy_with_a_token_of_its_own_goes_to_the_server_here(
    tmp_path: Path, data_directory: Path, new_server: Callable[..., Server]
) -> None:
    """The server on the user's data directory gets its own token, also if the copied directory holds another."""
    server = new_server(data_directory)
    attempt = left_behind(tmp_path / "copy", "http://127.0.0.1:9", mode="offline")
    assert (tmp_path / "copy" / "token").read_text() != server.token
    done = ampmon("sync", tmp_path / "copy", "--url", server.url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(server.get(f"/runs/{attempt.run}/events")["events"]) == 3


def test_sync_waits_for_a_writer_that_may_be_alive(tmp_path: Path) -> None:
    """A silent spool of another machine is removed two seconds after it was taken over."""
    attempt = left_behind(tmp_path, "http://127.0.0.1:9", process=STRANGER)
    silent(attempt.spool.path)
    server, clock, there = MemoryTransport(), ManualClock(0.0), list[float]()

    def on_batch(_: Sync) -> None:
        if spools(tmp_path):
            there.append(clock.now_s)
        clock.advance(0.5)

    sync = Sync(spools(tmp_path), lambda destination: server, on_batch=on_batch, clock=clock)
    (outcome,) = sync.run()
    assert (outcome.records, outcome.problem, outcome.kept) == (3, None, None)
    assert there == [0.0, 0.5, 1.0, 1.5]
    assert spools(tmp_path) == []


def test_the_check_of_dependencies_can_fail(tmp_path: Path) -> None:
    """Without the server's packages, `ampmon serve` exits with 2 and says what to install."""
    done = with_base_dependencies("serve", "--data-dir", tmp_path)
    assert done.returncode == 2
    assert "pip install" in done.stderr
