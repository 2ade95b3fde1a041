"""Delivery of spools: every record arrives once and in order, and rejected records are set aside."""

from __future__ import annotations

import base64
import itertools
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ampmon import wire
from ampmon.config import SPOOL_BYTES_MIN, resolve
from ampmon.errors import Unreachable
from ampmon.identity import uuid7
from ampmon.identity.process import start_time, this_process
from ampmon.sender import SenderStatus
from ampmon.sender.backoff import Backoff
from ampmon.sender.delivery import SpoolDelivery
from ampmon.sender.destination_worker import DestinationWorker
from ampmon.sender.loop import http_transports
from ampmon.spool import Destination, frame, layout, spools
from ampmon.spool.state import Cursor
from attempts import DEAD, Attempt, seqs
from doubles import ManualClock, MemoryTransport
from draining import DrainReport, drain
from recording_server import RecordingServer
from waiting import wait_for


@pytest.fixture
def server() -> MemoryTransport:
    return MemoryTransport()


def send(directory: Path, server: MemoryTransport, **options: tuple[str, ...]) -> DrainReport:
    return drain(directory, lambda destination: server, **options)


def test_records_arrive_once_and_in_order(tmp_path: Path, server: MemoryTransport) -> None:
    """All appended records are stored once, with the attempt's header. Draining again sends only new ones."""
    attempt = Attempt(tmp_path)
    attempt.events(12_000)
    assert send(tmp_path, server) == DrainReport(sent=12_000)
    assert seqs(server.records(attempt.id)) == list(range(12_000))
    assert [len(batch.records) for batch in server.batches] == [5000, 5000, 2000]
    assert [len(batch.headers) for batch in server.batches] == [1, 0, 0]
    assert send(tmp_path, server).sent == 0
    attempt.events(1)
    assert send(tmp_path, server).sent == 1
    attempt.spool.close()


def padded(attempt: Attempt, size: int) -> None:
    """Append an event with ``size`` bytes in an unknown field, since known fields hold less."""
    wait_for(lambda: attempt.spool.fullness <= 1)
    event = wire.Event(stream="", seq=attempt.seq, time=attempt.seq, kind="init")
    record = {**msgspec.to_builtins(event), "padding": "x" * size}
    assert attempt.spool.append(msgspec.msgpack.encode(record))
    attempt.seq += 1


def test_batches_stay_below_four_megabytes(tmp_path: Path, server: MemoryTransport) -> None:
    """A batch holds at most 4 MiB of records, but at least one record."""
    attempt = Attempt(tmp_path, segment_bytes=2**22)
    for size in (*[1_500_000] * 9, 6_000_000):
        padded(attempt, size)
    attempt.finish()
    send(tmp_path, server)
    assert [len(batch.records) for batch in server.batches] == [2, 1, 2, 1, 2, 1, 1, 1]


def test_finished_spool_is_gone(tmp_path: Path, server: MemoryTransport) -> None:
    """The spool of a finished attempt is removed after delivery, and no crash is reported."""
    attempt = Attempt(tmp_path)
    attempt.finish()
    send(tmp_path, server)
    assert spools(tmp_path) == []
    assert server.ended(attempt.id) is None


def test_delivered_segments_are_removed_while_the_run_goes_on(
    tmp_path: Path, server: MemoryTransport
) -> None:
    """Delivered segments of a running attempt are removed, except the last."""
    attempt = Attempt(tmp_path, segment_bytes=3000)
    attempt.events(500)
    send(tmp_path, server)
    assert len(list(attempt.spool.path.glob("*.seg"))) == 1
    attempt.events(500)
    send(tmp_path, server)
    assert seqs(server.records(attempt.id)) == list(range(1000))
    attempt.spool.close()


def test_killed_process_is_said_to_have_crashed(tmp_path: Path, server: MemoryTransport) -> None:
    """The last records of a dead process are delivered, then its attempt is marked as crashed."""
    attempt = Attempt(tmp_path, process=DEAD)
    attempt.events(3)
    assert send(tmp_path, server).sent == 3
    assert [batch.ended for batch in server.batches] == [None, "crashed"]
    assert spools(tmp_path) == []
    attempt.spool.close()


def test_process_killed_at_its_birth_leaves_nothing(
    tmp_path: Path, server: MemoryTransport
) -> None:
    """A dead process's spool without header and records is removed. With a record it stays."""
    attempts = [Attempt(tmp_path, process=DEAD, announced=False) for _ in range(2)]
    attempts[1].event()
    assert send(tmp_path, server).sent == 0
    assert spools(tmp_path) == [attempts[1].spool.path]
    for attempt in attempts:
        attempt.spool.close()


def test_finish_counts_whoever_delivers_the_rest(tmp_path: Path, server: MemoryTransport) -> None:
    """An attempt whose finish was delivered earlier is not marked as crashed by the next delivery."""
    attempt = Attempt(tmp_path)
    attempt.event("finish")
    send(tmp_path, server)
    attempt.event("run_id_assumed")
    attempt.spool.close()
    send(tmp_path, server)
    assert spools(tmp_path) == []
    assert server.ended(attempt.id) is None


def test_finish_of_a_stream_is_not_the_process_s(tmp_path: Path, server: MemoryTransport) -> None:
    """A stream's event named finish, or the word in a message, does not finish the attempt."""
    attempt = Attempt(tmp_path, process=DEAD)
    header = wire.StreamHeader(stream="scaler", scaler="GradScaler", device="cpu")
    attempt.spool.header("scaler", wire.encode(header))
    attempt.event("finish", stream="scaler")
    attempt.event("error", message="finish")
    send(tmp_path, server)
    assert server.ended(attempt.id) == "crashed"
    attempt.spool.close()


def test_lost_acknowledgement_doubles_nothing(tmp_path: Path, server: MemoryTransport) -> None:
    """A batch whose acknowledgement is lost is sent again and stored once."""
    attempt = Attempt(tmp_path)
    attempt.events(7000)
    server.lose_acks = 2
    assert send(tmp_path, server).sent == 0
    assert send(tmp_path, server).problems
    assert send(tmp_path, server).sent == 7000
    assert seqs(server.records(attempt.id)) == list(range(7000))
    assert len(server.batches) == 4
    attempt.spool.close()


def test_server_that_is_down_costs_nothing(tmp_path: Path, server: MemoryTransport) -> None:
    """While the server is down, records stay on disk and are reported with the reason. They arrive later."""
    attempt = Attempt(tmp_path)
    attempt.events(10)
    server.down = True
    report = send(tmp_path, server)
    assert (report.sent, list(report.problems.values())) == (0, ["the server is down"])
    assert report.waiting_bytes == (attempt.spool.path / "000000.seg").stat().st_size
    server.down = False
    assert send(tmp_path, server).waiting_bytes == 0
    assert seqs(server.records(attempt.id)) == list(range(10))
    attempt.spool.close()


def test_headers_are_sent_again_when_the_server_lacks_them(
    tmp_path: Path, server: MemoryTransport
) -> None:
    """A server that lost its headers gets all of them again with the rejected batch."""
    attempt = Attempt(tmp_path)
    stream = wire.StreamHeader(stream="scaler", scaler="GradScaler", device="cpu")
    attempt.spool.header("scaler", wire.encode(stream))
    delivery = SpoolDelivery(
        attempt.spool.path, Destination.of(attempt.options), server, ManualClock()
    )
    attempt.event("dead", stream="scaler")
    assert delivery.advance() == "sent"
    server.forget()
    attempt.event("dead", stream="scaler")
    assert delivery.advance() == "sent"
    assert set(server.headers[attempt.id]) == {"", "scaler"}
    assert seqs(server.records(attempt.id)) == [0, 1]
    attempt.spool.close()


def test_new_headers_are_sent_and_old_ones_are_not_repeated(
    tmp_path: Path, server: MemoryTransport
) -> None:
    """A header is sent if it is new or changed, alone if necessary, and not repeated."""
    attempt = Attempt(tmp_path)
    delivery = SpoolDelivery(
        attempt.spool.path, Destination.of(attempt.options), server, ManualClock()
    )
    for device in ("cpu", "cpu", "cuda"):
        stream = wire.StreamHeader(stream="scaler", scaler="GradScaler", device=device)
        attempt.spool.header("scaler", wire.encode(stream))
        delivery.advance()
    assert [len(batch.headers) for batch in server.batches] == [2, 1]
    assert delivery.advance() == "quiet"
    attempt.spool.close()


def test_spool_waits_for_its_run(tmp_path: Path, server: MemoryTransport) -> None:
    """Records written before their run is known are held until it is, and arrive completely."""
    attempt = Attempt(tmp_path, announced=False, segment_bytes=2000)
    attempt.events(200)
    assert send(tmp_path, server).sent == 0
    assert server.attempts == 0
    attempt.announce()
    attempt.events(1)
    assert send(tmp_path, server).sent == 201
    assert seqs(server.records(attempt.id)) == list(range(201))
    attempt.spool.close()


def test_poison_is_set_aside_and_the_rest_goes_on(tmp_path: Path, server: MemoryTransport) -> None:
    """Rejected records are counted and saved to a file with the reason; all others are stored."""
    attempt = Attempt(tmp_path)
    attempt.events(100)
    attempt.finish()
    poison = {0, 17, 18, 99}
    server.refuse = lambda record: record.seq in poison
    report = send(tmp_path, server)
    assert (report.sent, report.rejected, report.waiting_bytes) == (97, 4, 0)
    assert seqs(server.records(attempt.id)) == [n for n in range(101) if n not in poison]
    lines = [
        msgspec.json.decode(line, type=dict[str, object])
        for line in (attempt.spool.path / "rejected").read_bytes().splitlines()
    ]
    assert [line["reason"] for line in lines] == ["a record is not acceptable"] * 4
    assert list(attempt.spool.path.glob("*.seg")) == []
    assert send(tmp_path, server).sent == 0


def test_rejected_records_fill_no_disk(
    tmp_path: Path, server: MemoryTransport, caplog: pytest.LogCaptureFixture
) -> None:
    """Rejected records take no more disk space than unsent ones may. Further ones are counted, and the log says so."""
    attempt = Attempt(tmp_path)
    environment = {"AMPMON_SPOOL_BYTES": str(SPOOL_BYTES_MIN)}
    Destination.of(resolve(dir=tmp_path, environment=environment)).write(attempt.spool.path)
    attempt.events(10, text="x" * (SPOOL_BYTES_MIN // 5))
    server.refuse = lambda record: record.seq % 5 != 0
    report = send(tmp_path, server)
    assert (report.sent, report.rejected, report.waiting_bytes) == (2, 8, 0)
    rejected = (attempt.spool.path / "rejected").read_bytes()
    assert len(rejected) <= SPOOL_BYTES_MIN
    assert Cursor.read(attempt.spool.path).discarded == 8 - rejected.count(b"\n") == 5
    assert caplog.text.count("is full: further rejected records are only counted") == 1
    attempt.spool.close()


def test_of_a_rejected_record_that_is_too_large_to_keep_the_reason_is_kept(
    tmp_path: Path, server: MemoryTransport
) -> None:
    """If already the first rejected record has no room in the file, the file holds its reason, and it is counted."""
    attempt = Attempt(tmp_path)
    environment = {"AMPMON_SPOOL_BYTES": str(SPOOL_BYTES_MIN)}
    Destination.of(resolve(dir=tmp_path, environment=environment)).write(attempt.spool.path)
    attempt.events(2, text="x" * (SPOOL_BYTES_MIN * 7 // 8))
    server.refuse = lambda record: True
    assert send(tmp_path, server).rejected == 2
    (line,) = (attempt.spool.path / "rejected").read_bytes().splitlines()
    kept = msgspec.json.decode(line, type=dict[str, Any])
    assert (kept["reason"], kept["record"]) == ("a record is not acceptable", None)
    assert Cursor.read(attempt.spool.path).discarded == 2
    attempt.spool.close()


def _set_aside_beyond_limit(directory: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    server = MemoryTransport()
    attempt = Attempt(directory)
    attempt.events(2, text="x" * 3000)
    server.refuse = lambda record: record.seq == 1
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    with pytest.raises(OSError, match="No space left"):
        send(directory, server)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert send(directory, server).rejected == 1
    (line,) = (attempt.spool.path / "rejected").read_bytes().splitlines()
    kept = msgspec.json.decode(line, type=dict[str, Any])["record"]
    assert wire.decode(base64.b64decode(kept)).detail["text"] == "x" * 3000
    attempt.spool.abandon()


def test_a_record_is_set_aside_whole_or_not_at_all(tmp_path: Path) -> None:
    """If the disk takes only a part of a rejected record, the record stays in the spool until there is room."""
    child = multiprocessing.get_context("fork").Process(
        target=_set_aside_beyond_limit, args=(tmp_path,)
    )
    child.start()
    child.join()
    assert child.exitcode == 0


def test_a_restored_server_gets_the_newest_headers_before_a_record_is_set_aside(
    tmp_path: Path,
) -> None:
    """A record refused for the server's older headers is sent again once the server has the newest, and stored."""
    with RecordingServer() as server:
        attempt = Attempt(tmp_path, url=server.url)
        attempt.events(3)
        server.planned.append((422, {}))
        assert drain(tmp_path, http_transports(tmp_path)) == DrainReport(sent=3)
        assert [len(batch.records) for batch in server.store.batches] == [0, 3]
        attempt.spool.close()


def test_sender_that_is_refused_throws_nothing_away(
    tmp_path: Path, server: MemoryTransport
) -> None:
    """If the server refuses even an empty batch, all records stay on disk."""
    attempt = Attempt(tmp_path)
    attempt.events(10)
    server.bytes_max = 0
    report = send(tmp_path, server)
    assert (report.sent, report.rejected) == (0, 0)
    assert report.waiting_bytes > 0
    server.bytes_max = None
    send(tmp_path, server)
    assert seqs(server.records(attempt.id)) == list(range(10))
    attempt.spool.close()


def test_refused_records_outlive_a_lost_cursor(tmp_path: Path, server: MemoryTransport) -> None:
    """Without its cursor, a spool keeps the records set aside, and the others are delivered."""
    attempt = Attempt(tmp_path, segment_bytes=200)
    attempt.events(20)
    server.refuse = lambda record: record.seq == 0
    send(tmp_path, server)
    (attempt.spool.path / "cursor").unlink()
    attempt.finish()
    send(tmp_path, server)
    assert len((attempt.spool.path / "rejected").read_bytes().splitlines()) == 1
    assert seqs(server.records(attempt.id)) == list(range(1, 21))
    assert list(attempt.spool.path.glob("*.seg")) == []


@pytest.mark.parametrize("status", [301, 307, 403, 404, 405, 410, 415])
def test_answer_that_blames_no_record_sets_none_aside(tmp_path: Path, status: int) -> None:
    """After a redirect, a 403, a 404 or the like, a record is kept and sent again."""
    with RecordingServer() as server:
        attempt = Attempt(tmp_path, url=server.url)
        attempt.event()
        server.planned.append((status, {"Location": "http://127.0.0.1:9/"}))
        report = drain(tmp_path, http_transports(tmp_path))
        assert (report.sent, report.rejected, len(report.problems)) == (0, 0, 1)
        assert drain(tmp_path, http_transports(tmp_path)) == DrainReport(sent=1)
        assert seqs(server.store.records(attempt.id)) == [0]
        attempt.spool.close()


@pytest.mark.parametrize("status", [400, 409, 422])
def test_a_stranger_s_answer_sets_no_record_aside(tmp_path: Path, status: int) -> None:
    """If a proxy sends some requests to another program, that program's errors blame no record."""
    with RecordingServer() as server:
        attempt = Attempt(tmp_path, url=server.url)
        attempt.event()
        stranger = (status, {"Server": "another program"})
        server.planned.extend([stranger, (-1, {}), stranger, stranger])
        for _ in range(4):
            report = drain(tmp_path, http_transports(tmp_path))
            assert report.rejected == 0
        assert seqs(server.store.records(attempt.id)) == [0]
        attempt.spool.close()


@pytest.mark.parametrize("torn", [b"", b"\xc1AMP\1\1\7\0 and no more of the header"])
def test_spool_that_holds_nothing_goes(
    tmp_path: Path, server: MemoryTransport, torn: bytes
) -> None:
    """A dead process's spool is removed if it is empty or ends within its first header."""
    empty, other = (Attempt(tmp_path, process=DEAD, announced=False) for _ in range(2))
    (empty.spool.path / "000000.seg").write_bytes(torn)
    other.event()
    send(tmp_path, server)
    assert spools(tmp_path) == [other.spool.path]
    assert server.batches == []


def test_header_that_cannot_be_read_holds_up_no_other_spool(
    tmp_path: Path, server: MemoryTransport
) -> None:
    """A spool with an unreadable header stays and is reported, and the next spool is sent."""
    odd, sound = Attempt(tmp_path, announced=False), Attempt(tmp_path)
    odd.spool.header("attempt", b"\xc0")
    for attempt in (odd, sound):
        attempt.events(1)
    report = send(tmp_path, server)
    assert report.sent == 1
    assert "cannot be read" in report.problems[odd.id.hex]
    for attempt in (odd, sound):
        attempt.spool.close()


def test_too_large_batches_are_split(tmp_path: Path, server: MemoryTransport) -> None:
    """Batches too large for the server are split in order. A record too large by itself is set aside."""
    attempt = Attempt(tmp_path)
    attempt.events(300, text="x" * 1000)
    attempt.event("init", text="x" * 100_000)
    attempt.events(300, text="x" * 1000)
    server.bytes_max = 50_000
    report = send(tmp_path, server)
    assert (report.sent, report.rejected) == (600, 1)
    assert seqs(server.records(attempt.id)) == [n for n in range(601) if n != 300]
    attempt.spool.close()


def test_a_batch_that_was_too_large_is_not_tried_again(
    tmp_path: Path, server: MemoryTransport
) -> None:
    """After a server has rejected a batch for its size, it gets smaller ones."""
    attempt = Attempt(tmp_path)
    attempt.events(1000, text="x" * 10_000)
    server.bytes_max = 3_000_000
    assert send(tmp_path, server).sent == 1000
    assert server.attempts - len(server.batches) == 1
    attempt.spool.close()


def test_the_first_and_the_last_batch_do_not_wait(tmp_path: Path, server: MemoryTransport) -> None:
    """The next batch is urgent if it is the first or the last, or if it is large."""
    attempt = Attempt(tmp_path)
    destination = Destination.of(attempt.options)
    delivery = SpoolDelivery(attempt.spool.path, destination, server, ManualClock())
    urgent = []
    for step in (
        lambda: attempt.events(1),
        delivery.advance,
        lambda: attempt.events(1),
        lambda: attempt.events(100, text="x" * 1000),
        delivery.advance,
        attempt.spool.close,
    ):
        step()
        urgent.append(delivery.urgent())
    assert urgent == [True, False, False, True, False, True]


def test_an_update_too_large_for_a_server_arrives_without_its_sample(
    tmp_path: Path, server: MemoryTransport
) -> None:
    """An update too large for the server is stored without its sample, and the whole update is set aside."""
    attempt = Attempt(tmp_path)
    empty = dict.fromkeys(wire.Gradients.__struct_fields__, b"")
    update = wire.Update(
        stream="",
        seq=0,
        ordinal=0,
        time=0,
        scale=2.0,
        scale_after=1.0,
        growth_tracker=0,
        event="backoff",
        optimizers=(wire.OptimizerStep(optimizer="SGD", path="plain", skipped=True),),
        gradients=wire.Gradients(**{**empty, "histogram": bytes(100_000)}),
    )
    attempt.spool.append(wire.encode(update))
    attempt.spool.close()
    server.bytes_max = 50_000
    report = send(tmp_path, server)
    assert (report.sent, report.rejected) == (1, 1)
    assert server.records(attempt.id) == [msgspec.structs.replace(update, gradients=None)]


def test_damage_costs_the_records_it_hit(tmp_path: Path, server: MemoryTransport) -> None:
    """Damaged bytes cost only the record they hit, and the damage is counted."""
    attempt = Attempt(tmp_path)
    attempt.events(10)
    segment = attempt.spool.path / "000000.seg"
    content = bytearray(segment.read_bytes())
    content[-3 * (len(content) // 30)] ^= 0xFF
    segment.write_bytes(content)
    report = send(tmp_path, server)
    assert (report.sent, report.corrupt) == (9, 1)
    stored = seqs(server.records(attempt.id))
    assert len(stored) == 9
    assert stored == sorted(stored)
    attempt.spool.close()


def test_missing_segment_holds_back_none_behind_it(tmp_path: Path, server: MemoryTransport) -> None:
    """A missing segment is a gap, and the segments after it are delivered."""
    attempt = Attempt(tmp_path, segment_bytes=300)
    attempt.events(30)
    attempt.finish()
    (attempt.spool.path / "000002.seg").unlink()
    send(tmp_path, server)
    stored = seqs(server.records(attempt.id))
    assert (stored[0], stored[-1]) == (0, 30)
    assert 20 < len(stored) < 31
    assert spools(tmp_path) == []


def test_offline_spools_are_sent_on_request_only(tmp_path: Path, server: MemoryTransport) -> None:
    """Offline spools are sent only on request."""
    attempt = Attempt(tmp_path, mode="offline")
    attempt.finish()
    assert send(tmp_path, server).sent == 0
    assert send(tmp_path, server, modes=("offline",)).sent == 1
    assert seqs(server.records(attempt.id)) == [0]


@pytest.mark.parametrize(
    "where", [{"host": "another-machine"}, {"namespace": 1}, {"host": "localhost"}]
)
def test_process_on_another_machine_is_not_taken_for_dead(
    tmp_path: Path,
    server: MemoryTransport,
    where: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process of another host is not marked as crashed, and its spool stays.

    Containers on several machines may have one name, as in SageMaker, and so may machines called localhost.
    """
    if where == {"host": "localhost"}:
        monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    stranger = msgspec.structs.replace(DEAD, **where)
    attempt = Attempt(tmp_path, process=stranger)
    attempt.events(2)
    assert send(tmp_path, server).sent == 2
    assert server.ended(attempt.id) is None
    assert spools(tmp_path) == [attempt.spool.path]
    attempt.spool.close()


def _append(directory: Path, ids: multiprocessing.SimpleQueue[str]) -> None:
    attempt = Attempt(directory)
    attempt.events(2000)
    ids.put(attempt.id.hex)
    attempt.finish()


def test_ranks_of_one_host_share_a_directory(tmp_path: Path, server: MemoryTransport) -> None:
    """Spools of several processes that write at once are all delivered, each in order."""
    context = multiprocessing.get_context("fork")
    ids = context.SimpleQueue()
    ranks = [context.Process(target=_append, args=(tmp_path, ids)) for _ in range(3)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert send(tmp_path, server).sent == 3 * 2001
    assert sorted(a.hex for a in server.headers) == sorted(ids.get() for _ in ranks)
    assert all(seqs(server.records(a)) == list(range(2001)) for a in server.headers)


def hand_over(
    path: Path, worker: DestinationWorker, transport: MemoryTransport, clock: ManualClock
) -> None:
    """Give a worker a spool to send."""
    destination = Destination.read(path)
    assert destination is not None
    worker.add(SpoolDelivery(path, destination, transport, clock))


def test_a_resumed_run_waits_for_the_attempt_before_it(
    tmp_path: Path, server: MemoryTransport
) -> None:
    """A resumed attempt is sent after the whole of the ended one before it. Other runs do not wait."""
    clock = ManualClock()
    ended = Attempt(tmp_path, process=DEAD)
    ended.events(12_000)
    resumed, other = Attempt(tmp_path, run=ended.run), Attempt(tmp_path)
    resumed.events(3)
    other.events(3)
    destination = Destination.of(resumed.options)
    worker = DestinationWorker(destination, server, clock, gone=lambda name: None)
    for path in spools(tmp_path):
        hand_over(path, worker, server, clock)
    assert worker.work()
    assert [batch.attempt_id for batch in server.batches] == [ended.id, other.id]
    while worker.work():
        clock.advance(1.0)
    order = [batch.attempt_id for batch in server.batches]
    assert ended.id not in order[order.index(resumed.id) :]
    assert seqs(server.records(resumed.id)) == [0, 1, 2]
    resumed.spool.close()
    other.spool.close()


def test_a_run_that_goes_on_waits_for_no_others_that_ended(
    tmp_path: Path, server: MemoryTransport
) -> None:
    """While many ended runs are sent, a run begun meanwhile is soon sent, after the ended attempt that it resumes."""
    clock = ManualClock()
    ended = [Attempt(tmp_path, process=DEAD) for _ in range(20)]
    killed = ended[-1]
    destination = Destination.of(killed.options)
    worker = DestinationWorker(destination, server, clock, gone=lambda name: None)

    def meet(attempt: Attempt) -> None:
        attempt.event()
        hand_over(attempt.spool.path, worker, server, clock)

    resumed: list[Attempt] = []

    def slow(_: wire.Record) -> bool:
        clock.advance(0.1)
        if not resumed:
            resumed.append(Attempt(tmp_path, run=killed.run))
            meet(resumed[0])
        return False

    server.refuse = slow
    for attempt in ended:
        meet(attempt)
    while worker.work():
        pass
    order = [batch.attempt_id for batch in server.batches if batch.records]
    assert order.index(killed.id) < order.index(resumed[0].id) < 12
    assert sorted(order) == sorted(each.id for each in (*ended, *resumed))
    assert spools(tmp_path) == [resumed[0].spool.path]
    for attempt in ended:
        attempt.spool.abandon()
    resumed[0].spool.close()


def test_a_server_that_fails_a_run_that_goes_on_is_left_alone_at_once(
    tmp_path: Path, server: MemoryTransport
) -> None:
    """If the server fails while a running process has a turn between ended runs, it gets no further request then."""
    clock = ManualClock()
    attempts = [*(Attempt(tmp_path, process=DEAD) for _ in range(3)), Attempt(tmp_path)]
    worker = DestinationWorker(
        Destination.of(attempts[0].options), server, clock, gone=lambda name: None
    )
    for attempt in attempts:
        attempt.event()
        hand_over(attempt.spool.path, worker, server, clock)

    def slow(_: wire.Record) -> bool:
        clock.advance(0.6)
        server.down = True
        return False

    server.refuse = slow
    assert worker.work()
    assert server.attempts == 2
    for attempt in attempts:
        attempt.spool.abandon()


def test_an_attempt_that_just_died_arrives_whole_before_the_next(
    tmp_path: Path, server: MemoryTransport
) -> None:
    """If a process dies during its delivery, all its records arrive before those of the run's next attempt."""
    clock = ManualClock()
    with subprocess.Popen(["sleep", "60"]) as child:
        began = start_time(child.pid)
        assert began is not None
        process = msgspec.structs.replace(this_process(), pid=child.pid, started=began)
        killed = Attempt(tmp_path, process=process)
        killed.events(12_000)
        destination = Destination.of(killed.options)
        worker = DestinationWorker(destination, server, clock, gone=lambda name: None)

        hand_over(killed.spool.path, worker, server, clock)
        assert worker.work()
        child.kill()
    resumed = Attempt(tmp_path, run=killed.run)
    resumed.events(3)
    hand_over(resumed.spool.path, worker, server, clock)
    while worker.work():
        clock.advance(0.01)
    order = [batch.attempt_id for batch in server.batches]
    first = order.index(resumed.id)

    assert set(order[:first]) == {killed.id}
    assert seqs(server.records(killed.id)) == list(range(12_000))
    assert killed.id not in [each.attempt_id for each in server.batches[first:] if each.records]
    killed.spool.abandon()
    resumed.spool.close()


def refused_and_next(
    directory: Path, server: RecordingServer, clock: ManualClock, *, resumed: bool = True
) -> tuple[Attempt, Attempt, DestinationWorker]:
    """A dead attempt, the next one, maybe of the same run, and the worker that has both of their spools."""
    ended = Attempt(directory, url=server.url, process=DEAD)
    run = ended.run if resumed else uuid7()
    later = Attempt(directory, url=server.url, run=run)
    destination = Destination.of(later.options)
    transport = http_transports(directory)(destination)
    worker = DestinationWorker(destination, transport, clock, gone=lambda name: None)
    for attempt in (ended, later):
        attempt.events(3)
        hand_over(attempt.spool.path, worker, transport, clock)
    return ended, later, worker


def problems(worker: DestinationWorker, *attempts: Attempt) -> list[bool]:
    """Whether each attempt's process learns from the sender's status that its records wait."""
    status = SenderStatus(pid=0, updated=0, destinations=(worker.status(),))
    return [status.problem(worker.url, attempt.id) is not None for attempt in attempts]


def test_a_refused_run_is_no_problem_of_others(tmp_path: Path) -> None:
    """If the server rejects one run's records, only that run's process learns so, and others are delivered."""
    clock = ManualClock()
    with RecordingServer() as server:
        server.planned.append((404, {}))
        refused, other, worker = refused_and_next(tmp_path, server, clock, resumed=False)
        assert worker.work()
        assert problems(worker, refused, other) == [True, False]
        assert "404" in (worker.problem or "")
        assert worker.status().problem is None
        clock.advance(60.0)
        assert worker.work()
        assert problems(worker, refused, other) == [False, False]
        other.spool.close()
        worker.transport.close()


def test_a_server_that_rejects_records_is_not_called_unreachable(tmp_path: Path) -> None:
    """A server that did not answer, and then rejects records, is no longer reported as failing."""
    clock = ManualClock()
    with RecordingServer() as server:
        server.planned.extend([(503, {}), (404, {}), (404, {})])
        refused, other, worker = refused_and_next(tmp_path, server, clock, resumed=False)
        worker.work()
        assert problems(worker, refused, other) == [True, True]
        clock.advance(60.0)
        worker.work()
        assert worker.status().problem is None
        other.spool.close()
        worker.transport.close()


@pytest.mark.parametrize("status", [403, 404])
def test_a_resumed_run_waits_while_the_attempt_before_it_is_refused(
    tmp_path: Path, status: int
) -> None:
    """Once the token may send, the ended attempt arrives before the resumed one, whatever their delays."""
    clock = ManualClock()
    with RecordingServer() as server:
        server.planned.append((status, {}))
        ended, resumed, worker = refused_and_next(tmp_path, server, clock)
        for _ in range(3):
            assert not worker.work()
        assert server.store.batches == []
        assert problems(worker, ended, resumed) == [True, True]
        clock.advance(60.0)
        while worker.work():
            clock.advance(1.0)
        order = [batch.attempt_id for batch in server.store.batches]
        assert order == [ended.id, ended.id, resumed.id]
        assert problems(worker, ended, resumed) == [False, False]
        resumed.spool.close()
        worker.transport.close()


def test_records_of_a_newer_writer_are_kept(
    tmp_path: Path, server: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older sender takes frames that it does not know for no damage. It leaves them to a newer one."""
    newer = {name: getattr(frame, name) + 1 for name in ("VERSION", "RECORD", "HEADER")}
    other = Attempt(tmp_path)
    other.finish()
    with monkeypatch.context() as patched:
        for name, value in newer.items():
            patched.setattr(frame, name, value)
        attempt = Attempt(tmp_path, segment_bytes=500, process=DEAD)
        attempt.events(20)
        attempt.leave()
    report = send(tmp_path, server)
    assert (report.sent, report.rejected, report.corrupt) == (1, 0, 0)
    assert "upgrade" in report.problems[attempt.spool.path.name]
    for name, value in newer.items():
        monkeypatch.setattr(frame, name, value)
    assert send(tmp_path, server).sent == 20
    assert seqs(server.records(attempt.id)) == list(range(20))


def test_headers_refused_forever_hold_up_no_later_attempt(tmp_path: Path) -> None:
    """If even the headers of an attempt are refused, the run's next attempt is sent, and goes on without delays."""
    clock = ManualClock()
    with RecordingServer() as server:
        ended, resumed, worker = refused_and_next(tmp_path, server, clock)
        server.planned.extend(2 * [(422, {})])
        assert worker.work()
        resumed.events(3)
        assert worker.work()
        assert [batch.attempt_id for batch in server.store.batches] == 2 * [resumed.id]
        assert seqs(server.store.records(resumed.id)) == list(range(6))
        assert spools(tmp_path) == [ended.spool.path, resumed.spool.path]
        resumed.spool.close()
        worker.transport.close()


def test_headers_accepted_again_hold_up_the_next_attempt(tmp_path: Path) -> None:
    """Once the server accepts headers that it refused before, that attempt arrives whole before the run's next."""
    clock = ManualClock()
    with RecordingServer() as server:
        ended = Attempt(tmp_path, url=server.url, process=DEAD)
        ended.events(6000)
        resumed = Attempt(tmp_path, url=server.url, run=ended.run)
        resumed.events(3)
        destination = Destination.of(ended.options)
        transport = http_transports(tmp_path)(destination)
        worker = DestinationWorker(destination, transport, clock, gone=lambda name: None)
        hand_over(ended.spool.path, worker, transport, clock)
        server.planned.extend(2 * [(422, {})])
        assert not worker.work()
        clock.advance(60.0)
        hand_over(resumed.spool.path, worker, transport, clock)
        while worker.work():
            clock.advance(1.0)
        order = [batch.attempt_id for batch in server.store.batches if batch.records]
        assert order == [ended.id, ended.id, resumed.id]
        resumed.spool.close()
        worker.transport.close()


def test_an_unreadable_spool_holds_up_no_later_attempt(tmp_path: Path) -> None:
    """If a segment of an ended attempt cannot be read, the run's next attempt waits once, and is then sent."""
    clock = ManualClock()
    with RecordingServer() as server:
        ended, resumed, worker = refused_and_next(tmp_path, server, clock)
        layout.segment_path(
            ended.spool.path, 1
        ).mkdir()  # as unreadable as a bad disk, and for root too
        requests = []
        for _ in range(4):
            worker.work()
            clock.advance(60.0)
            requests.append(len(server.store.batches))
        assert requests == [1, 1, 2, 2]
        assert problems(worker, ended, resumed) == [True, False]
        assert [batch.attempt_id for batch in server.store.batches] == [ended.id, resumed.id]
        assert seqs(server.store.records(ended.id)) == list(range(3))
        resumed.spool.close()
        worker.transport.close()


def test_a_spool_is_limited_as_those_before_it(tmp_path: Path, server: MemoryTransport) -> None:
    """A spool that a worker gets after it was limited is sent in batches of that size too."""
    attempt = Attempt(tmp_path)
    attempt.events(400, text="x" * 1000)
    clock = ManualClock()
    worker = DestinationWorker(
        Destination.of(attempt.options), server, clock, gone=lambda name: None
    )
    worker.limit(2**16)
    hand_over(attempt.spool.path, worker, server, clock)
    assert worker.work()
    assert 0 < len(server.records(attempt.id)) < 100
    attempt.spool.close()


def test_the_cursor_waits_for_the_disk_once_a_second(
    tmp_path: Path, server: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a segment, a cursor is synced only if the last synced one is a second old."""
    attempt, clock, synced = Attempt(tmp_path), ManualClock(), list[float]()
    delivery = SpoolDelivery(attempt.spool.path, Destination.of(attempt.options), server, clock)
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(clock.now_s))
    for _ in range(8):
        clock.advance(0.25)
        attempt.event()
        assert delivery.advance() == "sent"
    began_s = clock.now_s - 2.0
    assert sorted({now_s - began_s for now_s in synced}) == [1.0, 2.0]
    attempt.spool.close()


def test_what_is_sent_at_once_may_grow_again(tmp_path: Path, server: MemoryTransport) -> None:
    """A delivery whose limit is raised again sends the rest at once."""
    attempt = Attempt(tmp_path)
    attempt.events(400, text="x" * 1000)
    destination = Destination.of(attempt.options)
    delivery = SpoolDelivery(attempt.spool.path, destination, server, ManualClock())
    delivery.limit(2**16)
    assert delivery.advance() == "sent"
    assert len(server.records(attempt.id)) < 100
    delivery.limit(2**22)
    assert delivery.advance() == "sent"
    assert len(server.records(attempt.id)) == 400
    attempt.spool.close()


def test_back_off_grows_to_its_limit_and_is_jittered() -> None:
    """Delays double up to 30 s, differ from each other, and start over after a success."""
    clock = ManualClock()
    backoff = Backoff(clock)
    delays = []
    for _ in range(20):
        backoff.failed()
        delays.append(backoff.remaining_s())
        clock.advance(delays[-1])
        assert backoff.remaining_s() == 0
    assert 0.5 <= delays[0] <= 1.0
    assert all(15 <= delay <= 30 for delay in delays[10:])
    assert len(set(delays[10:])) == 10
    backoff.succeeded()
    backoff.failed()
    assert backoff.remaining_s() <= 1.0


def test_back_off_waits_as_long_as_the_server_asks() -> None:
    """Retry-After is the minimum wait, and jitter spreads the senders."""
    waits = []
    for _ in range(100):
        backoff = Backoff(ManualClock())
        backoff.failed(Unreachable("busy", 7.0).retry_after_s)
        waits.append(backoff.remaining_s())
    assert min(waits) >= 7.0
    assert max(waits) <= 38.0
    assert max(waits) - min(waits) > 15.0


def test_after_a_failure_batches_begin_small(tmp_path: Path, server: MemoryTransport) -> None:
    """After a failure, batches begin at 64 KiB and double each time."""
    attempt = Attempt(tmp_path)
    attempt.events(3000, text="x" * 500)
    destination = Destination.of(attempt.options)
    delivery = SpoolDelivery(attempt.spool.path, destination, server, ManualClock())
    server.down = True
    with pytest.raises(Unreachable):
        delivery.advance()
    server.down = False
    sizes = []
    while delivery.advance() == "sent":
        sizes.append(len(wire.encode(server.batches[-1])))
    assert 60_000 < sizes[0] < 70_000
    assert all(1.9 < after / before < 2.1 for before, after in itertools.pairwise(sizes[:-1]))
    assert seqs(server.records(attempt.id)) == list(range(3000))
    attempt.spool.close()


def test_cursor_that_cannot_be_written_holds_up_nothing(
    tmp_path: Path, server: MemoryTransport
) -> None:
    """If the cursor cannot be written, records still arrive once and delivered segments are removed."""
    attempt = Attempt(tmp_path, segment_bytes=3000)
    (attempt.spool.path / "cursor").mkdir()
    attempt.events(500)
    assert send(tmp_path, server).sent == 500
    assert len(list(attempt.spool.path.glob("*.seg"))) == 1
    attempt.finish()
    send(tmp_path, server)
    assert seqs(server.records(attempt.id)) == list(range(501))
    assert spools(tmp_path) == []
