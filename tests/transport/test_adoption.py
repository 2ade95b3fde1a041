"""Adoption of spools whose writer is gone: one sender gets each, and a spool adopted too early loses nothing."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import socket
import sys
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import msgspec
import pytest

from ampmon import sender
from ampmon.identity.process import ProcessIdentity, this_process
from ampmon.sender import election
from ampmon.sender.adoption import LINGER_S, SILENT_S, adopt, orphans
from ampmon.sender.delivery import SpoolDelivery
from ampmon.sender.loop import Loop
from ampmon.spool import Destination, frame, layout, spools
from ampmon.spool.layout import claim, claimant_of
from ampmon_server.cli.serve import orphan_senders
from attempts import DEAD, Attempt, end_sender, seqs, working
from doubles import ManualClock, MemoryTransport
from draining import drain
from recording_server import RecordingServer
from waiting import DEADLINE_S, wait_for


STRANGER = msgspec.structs.replace(DEAD, host="another-machine")
LIVING = msgspec.structs.replace(this_process(), pid=1, started=0)


def silent(path: Path, for_s: float = SILENT_S + 1) -> None:
    """Make a spool look untouched for ``for_s`` seconds."""
    then_s = time.time() - for_s
    for each in (*path.iterdir(), path):
        os.utime(each, (then_s, then_s))


def destination_of(path: Path) -> Destination:
    destination = Destination.read(path)
    assert destination is not None
    return destination


def taken(path: Path) -> Path:
    """Take over a spool as a sender does, and return its new path."""
    now = adopt(path, destination_of(path))
    assert now is not None
    return now


def delivery(path: Path, server: MemoryTransport, clock: ManualClock) -> SpoolDelivery:
    return SpoolDelivery(path, destination_of(path), server, clock)


def _race(path: Path, ready: Barrier, won: multiprocessing.Queue[str]) -> None:
    ready.wait()
    mine = claim(path)
    won.put("" if mine is None else mine.name)


def test_of_several_that_take_a_spool_over_one_gets_it(tmp_path: Path) -> None:
    """Of several processes that claim a spool at once, one gets it, under a name of its own."""
    context = multiprocessing.get_context("fork")
    for _ in range(3):
        attempt = Attempt(tmp_path, process=DEAD)
        ready, won = context.Barrier(6), context.Queue()
        racers = [
            context.Process(target=_race, args=(attempt.spool.path, ready, won)) for _ in range(6)
        ]
        for racer in racers:
            racer.start()
        names = [won.get(timeout=DEADLINE_S) for _ in racers]
        for racer in racers:
            racer.join()
        (winner,) = filter(None, names)
        (lies,) = [path for path in spools(tmp_path) if path.name.startswith(attempt.id.hex)]
        assert lies.name == winner
        claimant = claimant_of(lies)
        assert claimant is not None
        assert claimant.pid in {racer.pid for racer in racers}
        assert claimant.fate() == "gone"
        attempt.spool.close()


def test_a_machine_s_own_dead_keep_their_name(tmp_path: Path) -> None:
    """A spool of this machine is adopted under its own name, whether its process is alive or dead."""
    for attempt in (Attempt(tmp_path), Attempt(tmp_path, process=DEAD)):
        assert taken(attempt.spool.path) == attempt.spool.path
        attempt.spool.close()


def test_a_stranger_s_spool_is_taken_when_it_was_silent_for_long(tmp_path: Path) -> None:
    """A spool of another machine is adopted only after ten minutes without a write."""
    attempt = Attempt(tmp_path, process=STRANGER)
    attempt.events(2)
    destination = destination_of(attempt.spool.path)
    assert adopt(attempt.spool.path, destination) is None
    assert orphans(tmp_path) == {}
    silent(attempt.spool.path, SILENT_S - 60)
    assert adopt(attempt.spool.path, destination) is None
    silent(attempt.spool.path)
    assert set(orphans(tmp_path)) == {attempt.spool.path.name}
    assert claimant_of(taken(attempt.spool.path)) == this_process()
    attempt.spool.close()


@pytest.mark.parametrize(("process", "alive"), [(None, True), (STRANGER, False), (DEAD, False)])
def test_only_a_process_that_is_seen_is_called_alive(
    tmp_path: Path, process: ProcessIdentity | None, alive: bool
) -> None:
    """A batch says whether the sender sees its process running. It cannot see one of another machine."""
    server = MemoryTransport()
    attempt = Attempt(tmp_path, process=process)
    attempt.events(2)
    assert delivery(attempt.spool.path, server, ManualClock()).advance() == "sent"
    assert [batch.alive for batch in server.batches] == [alive]
    attempt.spool.close()


def test_a_folder_that_cannot_be_read_has_no_orphans(tmp_path: Path) -> None:
    """If the folder of the spools cannot be read, a server finds no orphans there, and does not fail."""
    (tmp_path / "spool").symlink_to("spool")
    assert orphans(tmp_path) == {}


def test_a_stranger_whose_sender_works_is_only_silent(tmp_path: Path) -> None:
    """A spool that is silent for long is not adopted while its machine's sender works."""
    attempt = Attempt(tmp_path, process=STRANGER)
    attempt.events(2)
    silent(attempt.spool.path)
    status = tmp_path / "senders" / STRANGER.place() / "status"
    status.parent.mkdir(parents=True)
    status.write_text("{}")
    destination = destination_of(attempt.spool.path)
    assert adopt(attempt.spool.path, destination) is None
    assert orphans(tmp_path) == {}
    status.unlink()
    assert adopt(attempt.spool.path, destination) is not None
    attempt.spool.close()


def test_a_spool_taken_over_is_another_s_only_when_its_taker_is_gone(tmp_path: Path) -> None:
    """A claimed spool is adopted if its claimant is dead, or belongs to another machine and is silent."""
    for process, left in ((LIVING, True), (DEAD, False), (STRANGER, True)):
        attempt = Attempt(tmp_path, process=DEAD)
        claimed = _claimed_by(attempt.spool.path, process)
        assert (adopt(claimed, destination_of(claimed)) is None) == left
        assert (claimed.name in orphans(tmp_path)) is False
        if process == STRANGER:
            silent(claimed)
            assert claimant_of(taken(claimed)) == this_process()
        attempt.spool.close()


def _claimed_by(path: Path, process: ProcessIdentity) -> Path:
    name = f"{path.name}~{process.pid}_{process.started}_{process.namespace}_{process.boot_id}_{process.host}"
    return path.rename(path.with_name(name))


def test_a_stranger_given_up_is_delivered_and_said_to_have_crashed(tmp_path: Path) -> None:
    """An adopted spool of another machine is delivered. A minute after adoption its attempt is marked as crashed."""
    server, clock = MemoryTransport(), ManualClock()
    attempt = Attempt(tmp_path, process=STRANGER)
    attempt.events(3)
    silent(attempt.spool.path)
    path = taken(attempt.spool.path)
    delivered = delivery(path, server, clock)
    assert delivered.advance() == "sent"
    assert seqs(server.records(attempt.id)) == [0, 1, 2]
    clock.advance(LINGER_S - 1)
    assert delivered.advance() == "quiet"
    assert delivered.live()
    clock.advance(1)
    assert delivered.advance() == "done"
    assert server.ended(attempt.id) == "crashed"
    assert spools(tmp_path) == []
    attempt.spool.close()


def test_a_writer_that_lives_after_all_loses_nothing(tmp_path: Path) -> None:
    """Records written to a spool after its adoption are sent, and the spool stays while its writer goes on."""
    server, clock = MemoryTransport(), ManualClock()
    attempt = Attempt(tmp_path, process=STRANGER)
    attempt.events(3)
    silent(attempt.spool.path)
    path = taken(attempt.spool.path)
    delivered = delivery(path, server, clock)
    assert delivered.advance() == "sent"
    attempt.events(2)
    clock.advance(10 * LINGER_S)
    assert delivered.advance() == "sent"
    clock.advance(10 * LINGER_S)
    assert delivered.advance() == "quiet"
    assert seqs(server.records(attempt.id)) == [0, 1, 2, 3, 4]
    attempt.events(1)
    clock.advance(10 * LINGER_S)
    assert delivered.advance() == "sent"
    assert server.ended(attempt.id) is None
    assert spools(tmp_path) == [path]
    attempt.spool.close()


def test_an_attempt_that_goes_on_in_a_spool_of_its_own_has_not_crashed(tmp_path: Path) -> None:
    """Once its writer has begun a new spool, the adopted one is removed and no crash is reported."""
    server, clock = MemoryTransport(), ManualClock()
    attempt = Attempt(tmp_path, process=STRANGER)
    attempt.events(3)
    silent(attempt.spool.path)
    delivered = delivery(taken(attempt.spool.path), server, clock)
    anew = Attempt(tmp_path, process=STRANGER, id=attempt.id, run=attempt.run, seq=3)
    anew.events(2)
    assert delivered.advance() == "sent"
    clock.advance(LINGER_S)
    assert delivered.advance() == "done"
    assert server.ended(attempt.id) is None
    assert spools(tmp_path) == [anew.spool.path]
    for each in (attempt, anew):
        each.spool.close()


def test_a_spool_that_was_taken_away_is_done_with(tmp_path: Path) -> None:
    """A sender drops a spool that another process took over, and sends none of it."""
    server = MemoryTransport()
    server.down = True
    attempt = Attempt(tmp_path, process=DEAD)
    attempt.events(3)
    with working(Loop(tmp_path, lambda destination: server)):
        wait_for(lambda: server.attempts)
        _claimed_by(attempt.spool.path, LIVING)
        wait_for(
            lambda: (said := sender.status(tmp_path)) and not said.destinations[0].waiting_bytes
        )
    assert server.records(attempt.id) == []
    attempt.spool.close()


@pytest.mark.parametrize(("down", "stays_s"), [(False, 5.0), (True, 300.0)])
def test_a_sender_stays_longer_if_records_wait(tmp_path: Path, down: bool, stays_s: float) -> None:
    """After its writers are gone, a sender ends 5 s after it has sent all, or after 5 min without a server."""
    server, clock = MemoryTransport(), ManualClock()
    server.down = down
    attempt = Attempt(tmp_path, process=DEAD)
    attempt.events(2)
    attempt.spool.close()

    def looked_again() -> bool:
        found = sender.status(tmp_path)
        return found is not None and found.updated > before.updated

    with working(Loop(tmp_path, lambda destination: server, clock=clock)) as thread:
        if down:
            wait_for(
                lambda: (
                    (said := sender.status(tmp_path))
                    and said.destinations
                    and said.destinations[0].problem
                )
            )
        else:
            wait_for(lambda: not spools(tmp_path))
        for waited_s in (stays_s - 2.0, 1.0):  # it looked whether to end before it reports again
            before = wait_for(lambda: sender.status(tmp_path))
            clock.advance(waited_s)
            wait_for(looked_again)
        clock.advance(4.0)
        wait_for(lambda: not thread.is_alive())


def test_waiting_for_the_end_sees_a_spool_that_was_taken_over(tmp_path: Path) -> None:
    """`wait_until_sent` does not take a spool that another process claimed for a delivered one."""
    attempt = Attempt(tmp_path)
    attempt.events(3)
    path = attempt.spool.path
    claimed = _claimed_by(path, LIVING)
    assert not sender.wait_until_sent(tmp_path, attempt.id, 0.05)
    claimed.rename(path)
    drain(tmp_path, lambda destination: MemoryTransport())
    assert sender.wait_until_sent(tmp_path, attempt.id, DEADLINE_S)
    attempt.spool.close()


def test_what_a_killed_removal_left_is_removed(tmp_path: Path) -> None:
    """A sender removes what a killed sender left while removing a delivered spool: at once if it is empty."""
    attempts = [Attempt(tmp_path, process=DEAD) for _ in range(3)]
    for attempt in attempts:
        attempt.spool.close()
        (attempt.spool.path / "000000.seg").unlink()
    (attempts[1].spool.path / "destination").unlink()
    silent(attempts[1].spool.path)
    for file in attempts[2].spool.path.iterdir():
        file.unlink()
    with working(Loop(tmp_path, lambda destination: MemoryTransport())):
        wait_for(lambda: not spools(tmp_path))


def test_a_spool_without_destination_is_kept_while_it_may_be_needed(tmp_path: Path) -> None:
    """A sender removes neither records whose destination is missing, nor a spool that somebody is making."""
    attempts = [Attempt(tmp_path, process=DEAD) for _ in range(2)]
    for attempt in attempts:
        attempt.spool.close()
        (attempt.spool.path / "destination").unlink()
    silent(attempts[0].spool.path)
    (attempts[1].spool.path / "000000.seg").unlink()
    Loop(tmp_path, lambda destination: MemoryTransport())._look_for_spools()
    assert spools(tmp_path) == [attempt.spool.path for attempt in attempts]


def test_a_sender_goes_on_with_what_it_took_over(tmp_path: Path) -> None:
    """A spool that this process took over stays its own to send."""
    attempt = Attempt(tmp_path, process=STRANGER)
    attempt.spool.close()
    silent(attempt.spool.path)
    path = taken(attempt.spool.path)
    assert adopt(path, destination_of(path)) == path


def test_orphans_are_records_for_a_server(tmp_path: Path) -> None:
    """Offline spools, delivered ones and those whose server is unknown are no orphans."""
    orphan, delivered, unknown = (Attempt(tmp_path, process=DEAD) for _ in range(3))
    offline = Attempt(tmp_path, process=DEAD, mode="offline")
    for attempt in (orphan, delivered, unknown, offline):
        attempt.leave()
    (delivered.spool.path / "000000.seg").unlink()
    (unknown.spool.path / "destination").unlink()
    assert orphans(tmp_path).keys() == {orphan.spool.path.name}


@pytest.mark.parametrize("deletions", range(4))
def test_a_removal_that_is_cut_off_leaves_a_spool_that_the_next_sender_removes(
    tmp_path: Path, deletions: int
) -> None:
    """A sender that is killed while it removes a spool leaves the destination, so the next one need not wait."""
    attempt = Attempt(tmp_path, process=DEAD)
    attempt.events(3)
    attempt.spool.close()
    (attempt.spool.path / "cursor").touch()
    left: list[None] | None = [None] * deletions

    def dying(event: str, _: object) -> None:
        if event == "os.remove" and left is not None:
            if not left:
                raise KeyboardInterrupt
            left.pop()

    sys.addaudithook(dying)  # sees the deletions of all functions, and stays for good
    with pytest.raises(KeyboardInterrupt):
        layout.remove(attempt.spool.path)
    left = None
    assert (attempt.spool.path / "destination").exists()
    drain(tmp_path, lambda destination: MemoryTransport())
    assert spools(tmp_path) == []


def test_each_machine_has_a_sender_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a shared directory each machine has its own sender."""
    office = election.elect(tmp_path)
    assert office is not None
    assert election.elect(tmp_path) is None
    monkeypatch.setattr(socket, "gethostname", lambda: "another machine/..")
    assert not election.is_held(tmp_path)
    other = election.elect(tmp_path)
    assert other is not None
    assert election.home(tmp_path).parent == tmp_path / "senders"
    for each in (office, other):
        each.resign()


def test_who_looks_for_a_sender_is_none(tmp_path: Path) -> None:
    """Two processes that look for the sender at the same time do not take each other for it."""
    office = election.elect(tmp_path)
    assert office is not None
    office.resign()
    with (election.home(tmp_path) / "lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # as the other process does
        assert not election.is_held(tmp_path)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_one_sender_where_files_cannot_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """On a file system without locks the lock is kept on a local disk, and there is still only one sender."""
    flock = fcntl.flock

    def refusing(fd: int, how: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{fd}")).is_relative_to(tmp_path / "data"):
            raise OSError(number, os.strerror(number))
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", refusing)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    directory = tmp_path / "data"
    assert not election.is_held(directory)
    office = election.elect(directory)
    assert office is not None
    assert office.is_held()
    assert election.is_held(directory)
    assert election.elect(directory) is None
    office.resign()
    assert not election.is_held(directory)


def test_a_server_says_that_it_cannot_send_what_dead_processes_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Records that no sender here can send are reported in the server's log once, however often it looks."""
    with monkeypatch.context() as patched:
        patched.setattr(frame, "VERSION", frame.VERSION + 1)
        Attempt(tmp_path, process=DEAD).leave()
    looks, find = list[Path](), sender.orphans
    monkeypatch.setattr(sender, "orphans", lambda path: (looks.append(path), find(path))[1])
    monkeypatch.setattr(sender, "ensure_running", lambda path: None)
    with orphan_senders(tmp_path, every_s=0.02):
        wait_for(lambda: len(looks) > 3)
    assert caplog.messages == [
        f"The records of ended processes in {tmp_path / 'spool'} (1) cannot be sent: run `ampmon sync` to see why"
    ]


def test_what_dead_processes_left_is_sent_while_a_server_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While `ampmon serve` runs, it starts a sender for a spool whose process and sender are gone."""
    looks, find = list[Path](), sender.orphans
    monkeypatch.setattr(sender, "orphans", lambda path: (looks.append(path), find(path))[1])
    with RecordingServer() as server, orphan_senders(tmp_path, every_s=0.02):
        wait_for(lambda: len(looks) > 2)
        assert not election.is_held(tmp_path)
        attempt = Attempt(tmp_path, url=server.url, process=DEAD)
        attempt.events(3)
        wait_for(lambda: not spools(tmp_path))
    end_sender(tmp_path)
    assert seqs(server.store.records(attempt.id)) == [0, 1, 2]
    assert server.store.ended(attempt.id) == "crashed"
    attempt.spool.close()
