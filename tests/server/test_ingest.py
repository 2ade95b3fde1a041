"""Ingest stores each record once and no part of a bad batch, counts losses and overlays resumed runs."""

from __future__ import annotations

import math
import time
import tracemalloc
from uuid import uuid4

import msgspec
import numpy as np
import pytest
from fastapi.testclient import TestClient

from ampmon import wire
from ampmon.numerics.histogram import BINS
from ampmon_server.store import BadBatch, NotFound, Sender, Store, UnknownHeader, Wanted
from ampmon_server.store.streams.state import SILENT_AFTER_US
from batches import PARAMETERS, START, Trainer, counted, statistics


pytestmark = pytest.mark.storage


def test_a_resent_batch_changes_nothing(store: Store) -> None:
    """A resent batch gets the same acknowledgement and changes no count or version."""
    trainer = Trainer()
    batch = trainer.batch(
        [*trainer.updates(10, skipped=[3], sampled=[0, 5]), trainer.event("init")]
    )
    first, again = store.ingest(batch), store.ingest(batch)
    summary, _ = store.run(trainer.run_id)

    assert first.ack == again.ack == wire.Ack(acked={"scaler": 9, "": 0}, version=1)
    assert (first.changed, again.changed) == (True, False)
    assert (summary.updates, summary.skipped, summary.sampled_updates) == (10, 1, 2)
    assert (summary.records, summary.lost_records) == (11, 0)


def test_an_overlapping_batch_adds_its_rest(store: Store) -> None:
    """A batch that is partly stored adds its other records."""
    trainer = Trainer()
    updates = trainer.updates(10)
    store.ingest(trainer.batch(updates[:6]))
    store.ingest(trainer.batch(updates[4:]))

    assert store.run(trainer.run_id)[0].updates == 10


def test_a_gap_is_counted_until_it_is_filled(store: Store) -> None:
    """Missing records count as lost until they arrive."""
    trainer = Trainer()
    updates = trainer.updates(10)
    store.ingest(trainer.batch([*updates[:3], *updates[7:]]))
    before = store.run(trainer.run_id)[0]
    ack = store.ingest(trainer.batch(updates[3:7])).ack
    after = store.run(trainer.run_id)[0]

    assert (before.records, before.lost_records) == (6, 4)
    assert (after.records, after.lost_records) == (10, 0)
    assert ack.acked == {"scaler": 9}


def test_the_same_seq_twice_in_a_batch_is_one_record(store: Store) -> None:
    """Of two records with the same seq in a batch, the first is stored."""
    trainer = Trainer()
    first = trainer.update()
    twin = msgspec.structs.replace(first, ordinal=7)
    store.ingest(trainer.batch([first, twin]))

    assert store.run(trainer.run_id)[0].last_step == 0


def test_a_batch_may_hold_its_records_in_any_order(store: Store) -> None:
    """Records in any order are all stored, and the highest seq is acknowledged."""
    trainer = Trainer()
    records = [*trainer.updates(3), trainer.scalars({"loss": 1.0}), *trainer.updates(3)]
    first = store.ingest(trainer.batch([records[3], *records[:3]])).ack
    second = store.ingest(trainer.batch(records[:1:-1])).ack
    summary = store.run(trainer.run_id)[0]

    assert (first.acked, second.acked) == ({"scaler": 3}, {"scaler": 6})
    assert (summary.records, summary.lost_records, summary.updates) == (7, 0, 6)


def test_an_ordinal_given_twice_counts_once(store: Store) -> None:
    """A second update with the same step counts as a record but changes no total."""
    trainer = Trainer()
    first = trainer.update()
    twin = msgspec.structs.replace(trainer.update(skipped=True), ordinal=0)
    store.ingest(trainer.batch([first]))
    store.ingest(trainer.batch([twin]))
    summary = store.run(trainer.run_id)[0]

    assert (summary.records, summary.updates, summary.skipped) == (2, 1, 0)


def test_records_without_their_headers_are_asked_for(store: Store) -> None:
    """A batch with an unknown attempt or stream raises UnknownHeader with its name, and stores nothing."""
    trainer = Trainer()
    updates = trainer.updates(2)
    with pytest.raises(UnknownHeader) as attempt:
        store.ingest(trainer.batch(updates, headers=()))
    with pytest.raises(UnknownHeader) as stream:
        store.ingest(trainer.batch(updates, headers=(trainer.attempt,)))

    assert (attempt.value.header, stream.value.header) == ("attempt", "scaler")
    with pytest.raises(NotFound):
        store.run(trainer.run_id)


def test_headers_are_remembered(store: Store) -> None:
    """Once its headers are stored, a stream's records need none."""
    trainer = Trainer()
    store.ingest(trainer.batch())
    store.ingest(trainer.batch(trainer.updates(2), headers=()))

    assert store.run(trainer.run_id)[0].updates == 2


def test_a_resumed_run_goes_on_after_its_last_step(store: Store) -> None:
    """Without a resume step, every rank's second attempt begins after the last step of any rank, marked as assumed."""
    first = [Trainer(rank=0, world_size=2)]
    first.append(Trainer(first[0].run_id, rank=1, world_size=2))
    run_id = first[0].run_id
    store.ingest(first[0].batch(first[0].updates(5)))
    store.ingest(first[1].batch(first[1].updates(7)))
    again = [Trainer(run_id, rank, world_size=2) for rank in (0, 1)]
    store.ingest(again[0].batch(again[0].updates(2)))
    store.ingest(first[1].batch(first[1].updates(3)))  # the first attempt's tail arrives late
    store.ingest(again[1].batch(again[1].updates(2)))
    summary, identity = store.run(run_id)

    starts = [
        (each["attempt"], each["origin"], each["origin_assumed"]) for each in identity.attempts
    ]
    assert starts == [(0, 0, False), (1, 7, True)] * 2
    assert summary.updates == 10  # steps 0 to 9: the second attempt repeats the tail's
    assert (summary.attempts, summary.ranks) == (2, 2)


def test_a_later_attempt_lies_over_an_earlier_one(store: Store) -> None:
    """For repeated steps, series, skips and totals come from the later attempt."""
    first = Trainer()
    store.ingest(first.batch(first.updates(10, skipped=[2, 6], sampled=[0, 6, 9])))
    second = Trainer(first.run_id, resume_step=5)
    store.ingest(second.batch(second.updates(3, skipped=[0], sampled=[0])))
    series = store.series(first.run_id)
    skips = store.skips(first.run_id).rows

    assert series.updates["first"].tolist() == list(range(10))
    assert series.updates["skipped"].nonzero()[0].tolist() == [2, 5]
    assert series.gradients["first"].tolist() == [0, 5, 9]
    assert [(skip.step, skip.attempt) for skip in skips] == [(5, 1), (2, 0)]
    assert store.run(first.run_id)[0].skipped == 2


def test_ranks_do_not_multiply_updates(store: Store) -> None:
    """With four ranks a step counts once, and as skipped if any rank skipped it."""
    run_id = uuid4()
    for rank in range(4):
        trainer = Trainer(run_id, rank, world_size=4)
        store.ingest(trainer.batch(trainer.updates(20, skipped=[rank])))
    summary = store.run(run_id)[0]
    series = store.series(run_id).updates

    assert (summary.updates, summary.skipped, summary.ranks) == (20, 4, 4)
    assert series["skipped"].nonzero()[0].tolist() == [0, 1, 2, 3]
    assert len(store.skips(run_id).rows) == 4


def test_a_hole_in_one_rank_is_filled_from_another(store: Store) -> None:
    """Updates that the lowest rank lost come from the next one, in series and summary."""
    run_id = uuid4()
    leader, other = Trainer(run_id, 0), Trainer(run_id, 1)
    kept, lost = leader.updates(10), {4, 5, 9}
    store.ingest(leader.batch([update for update in kept if update.seq not in lost]))
    store.ingest(other.batch(other.updates(10)))

    assert store.series(run_id).updates["first"].tolist() == list(range(10))
    assert store.run(run_id)[0].updates == 10


@pytest.mark.parametrize("kept", [range(5000, 5010), range(0, 5010, 50)], ids=["one hole", "many"])
def test_a_page_reads_no_more_of_other_ranks_than_it_gives(store: Store, kept: range) -> None:
    """A page of updates with gaps filled from another rank reads only what it returns."""
    run_id = uuid4()
    torn, full = (Trainer(run_id, rank, world_size=2) for rank in (0, 1))
    store.ingest(torn.batch([torn.update(ordinal=ordinal) for ordinal in kept]))
    store.ingest(full.batch(full.updates(5010)))
    tracemalloc.start()
    try:
        page = store.updates(run_id, stream=None, start=0, stop=5010, limit=70)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (page.columns["step"], page.following) == (list(range(70)), 70)
    assert peak < 5e5


def test_what_others_have_between_two_records_is_not_read(store: Store) -> None:
    """Ingesting a batch with a gap does not load the other rank's updates in the gap."""
    run_id = uuid4()
    full, torn = (Trainer(run_id, rank, world_size=2) for rank in (0, 1))
    store.ingest(full.batch(full.updates(20_000)))
    store.ingest(torn.batch(torn.updates(1)))
    ends = [torn.update(ordinal=ordinal, skipped=True) for ordinal in (5, 19_995)]
    tracemalloc.start()
    try:
        store.ingest(torn.batch(ends))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4e6
    summary = store.run(run_id)[0]
    assert (summary.updates, summary.skipped) == (20_000, 2)


def test_shards_add_up_and_replicas_do_not(store: Store) -> None:
    """Sharded gradients are summed over ranks. Replicated ones come from the lowest rank."""
    sharded, replicated = uuid4(), uuid4()
    for run_id, layout in ((sharded, "sharded"), (replicated, "replicated")):
        for rank in (0, 1):
            trainer = Trainer(run_id, rank, layout=layout, world_size=2)  # type: ignore[arg-type]
            store.ingest(trainer.batch(trainer.updates(3, sampled=[1])))

    assert store.series(sharded).gradients["on_looked"].tolist() == [2 * 2 * 80]
    assert store.series(replicated).gradients["on_looked"].tolist() == [2 * 80]
    assert store.parameters(sharded).ranks == [0, 1]
    assert [row.looked for row in store.parameters(sharded).parameters] == [160, 160]
    assert store.run(sharded)[0].zero_fraction == pytest.approx(0.1)


def test_a_late_sample_does_not_replace_the_newest_fractions(store: Store) -> None:
    """A run's fractions are those of its newest sample, even if an earlier one or one before a resume arrives later."""
    trainer = Trainer()

    def sampled(by: Trainer, zeros: int) -> wire.Update:
        histogram = np.zeros((2, BINS), np.int64)
        histogram[:, 40] = 100 - zeros
        return by.update(gradients=counted(histogram, zeros=zeros).to_wire())

    def zero_fraction() -> float | None:
        return store.run(trainer.run_id)[0].zero_fraction

    records = [sampled(trainer, 10), *trainer.updates(4), sampled(trainer, 20), trainer.update()]
    lost = sampled(trainer, 30)
    store.ingest(trainer.batch(records[-1:]))
    assert zero_fraction() is None
    store.ingest(trainer.batch(records[3:-1]))
    assert zero_fraction() == pytest.approx(0.2)
    store.ingest(trainer.batch(records[:3]))
    assert zero_fraction() == pytest.approx(0.2)

    resumed = Trainer(trainer.run_id, resume_step=4)
    store.ingest(resumed.batch([sampled(resumed, 40)]))
    assert zero_fraction() == pytest.approx(0.4)
    store.ingest(trainer.batch([lost]))
    assert zero_fraction() == pytest.approx(0.4)


def test_numbers_that_are_not_finite_come_back_as_they_were(store: Store) -> None:
    """Non-finite and subnormal scales, and a non-finite amax and norm, survive storage."""
    trainer = Trainer()
    odd = [math.nan, math.inf, -math.inf, 5e-324]
    updates = [trainer.update(scale=scale) for scale in odd]
    wild = statistics(seed=1)
    wild.amax[0], wild.sum_squares[1] = math.inf, math.nan
    sampled = trainer.update(gradients=wild.to_wire())
    store.ingest(trainer.batch([*updates, sampled]))
    series = store.series(trainer.run_id)
    columns = store.updates(trainer.run_id, stream=None, start=0, stop=10, limit=10).columns
    first, second = store.parameters(trainer.run_id).parameters

    np.testing.assert_array_equal(series.updates["scale_first"][:4], odd)
    assert columns["scale_kind"] == ["nan", "inf", "-inf", None, None]
    assert columns["scale"] == [None, None, None, 5e-324, 1024.0]
    assert (first.amax, first.amax_kind, first.headroom_bits_kind) == (None, "inf", "-inf")
    assert (second.norm, second.norm_kind) == (None, "nan")
    assert columns["headroom_bits"] == [None] * 5
    assert columns["headroom_bits_kind"] == [None] * 4 + ["-inf"]


def test_samples_come_back_bit_for_bit(store: Store) -> None:
    """A sample's parameters are read back as sent, and its fractions follow from them."""
    trainer = Trainer()
    store.ingest(trainer.batch(trainer.updates(70, sampled=range(0, 70, 2))))
    sampled = store.parameters(trainer.run_id, step=41)
    sent = statistics(seed=40)
    columns = store.updates(trainer.run_id, stream=None, start=40, stop=42, limit=10).columns

    assert sampled.step == 40
    assert [row.histogram for row in sampled.parameters] == sent.histogram.tolist()
    assert [row.amax for row in sampled.parameters] == sent.amax.tolist()
    assert [row.name for row in sampled.parameters] == [each.name for each in PARAMETERS]
    assert columns["zero_fraction"] == [pytest.approx(0.1), None]
    assert columns["subnormal_fraction"] == [pytest.approx(0.9), None]


def test_the_newest_settings_of_an_attempt_hold(store: Store) -> None:
    """A header with new scaler settings replaces them. A header with fewer parameters is a resend."""
    trainer = Trainer()
    longer = (*PARAMETERS, wire.Parameter("bias", (10,), "float16"))
    grown = msgspec.structs.replace(trainer.stream, parameters=longer)
    calmer = msgspec.structs.replace(grown, growth_interval=500, growth_factor=1.5)
    store.ingest(trainer.batch(trainer.updates(3)))
    for header in (grown, calmer, trainer.stream):
        store.ingest(trainer.batch(trainer.updates(1), headers=(header,)))
    (scaler,) = store.case(trainer.run_id).scalers
    assert (scaler.policy.growth_interval, scaler.policy.growth_factor) == (500, 1.5)
    assert store.run(trainer.run_id)[0].parameters == 3


def test_a_header_may_grow_at_its_end_only(store: Store) -> None:
    """A header may add parameters at its end or repeat fewer. A different list is rejected."""
    trainer = Trainer()
    longer = (*PARAMETERS, wire.Parameter("bias", (10,), "float16"))
    grown = msgspec.structs.replace(trainer.stream, parameters=longer)
    other = msgspec.structs.replace(trainer.stream, parameters=longer[::-1])
    store.ingest(trainer.batch())
    store.ingest(trainer.batch(headers=(grown,)))
    store.ingest(trainer.batch())
    update = trainer.update(gradients=statistics(3).to_wire())
    store.ingest(trainer.batch([update], headers=()))
    with pytest.raises(BadBatch, match=r"headers\[0\].parameters"):
        store.ingest(trainer.batch(headers=(other,)))

    assert store.run(trainer.run_id)[0].parameters == 3
    assert len(store.parameters(trainer.run_id).parameters) == 3


def test_what_went_wrong_in_the_monitor_is_summed_up(store: Store) -> None:
    """Errors count by their `repeat` and drops by their `count`, once however often they are sent."""
    trainer = Trainer()
    records = [
        trainer.event("error", where="probe", repeat=100),
        trainer.event("error", where="probe"),
        trainer.event("dropped", count=7),
        trainer.event("dropped", count="many"),
    ]
    for _ in range(2):
        store.ingest(trainer.batch(records))
    summary = store.run(trainer.run_id)[0]

    assert (summary.errors, summary.dropped) == (101, 8)


def test_a_run_is_finished_when_all_ranks_are(store: Store) -> None:
    """A run finishes when every rank's newest attempt has, and crashes when one has."""
    run_id = uuid4()
    ranks = [Trainer(run_id, rank, world_size=2) for rank in (0, 1)]
    statuses = []
    for trainer in ranks:
        store.ingest(trainer.batch([trainer.event("init")]))
    for trainer in ranks:
        store.ingest(trainer.batch([trainer.event("finish")]))
        statuses.append(store.run(run_id)[0].status)
    again = Trainer(run_id, 1, world_size=2)
    for batch in (again.batch([again.event("init")]), again.batch(ended="crashed")):
        store.ingest(batch)
        statuses.append(store.run(run_id)[0].status)

    assert statuses == ["running", "finished", "running", "crashed"]


def test_a_process_that_goes_on_after_all_has_not_crashed(store: Store) -> None:
    """A sender's report of a crash counts until the process makes more updates or reports its own end."""
    trainer = Trainer()
    batches = [
        trainer.batch([trainer.update()]),
        trainer.batch(ended="crashed"),
        trainer.batch([trainer.update()]),
        trainer.batch(ended="crashed"),
        trainer.batch([trainer.event("finish")]),
        trainer.batch(ended="crashed"),
    ]
    statuses, ends = [], []
    for batch in batches:
        store.ingest(batch)
        summary, identity = store.run(trainer.run_id)
        statuses.append(summary.status)
        ends.append(identity.attempts[0]["ended"])

    assert statuses == ["running", "crashed", "running", "crashed", "finished", "finished"]
    assert ends == [None, "crashed", None, "crashed", "finished", "finished"]


def test_an_exception_counts_whatever_follows_it(store: Store) -> None:
    """After a process reported an exception, its late updates and another end change nothing."""
    run_id = uuid4()
    trainer, other = (Trainer(run_id, rank, world_size=2) for rank in (0, 1))
    store.ingest(other.batch([other.update()]))
    late = trainer.update()
    store.ingest(trainer.batch([trainer.event("exception")]))
    store.ingest(trainer.batch([late, trainer.event("finish")], ended="crashed"))
    store.ingest(other.batch([other.event("exception", stream="scaler"), other.event("finish")]))

    assert store.run(run_id)[0].status == "crashed"


def test_a_run_that_goes_on_with_fewer_ranks_is_theirs(store: Store) -> None:
    """The status of a run resumed on fewer ranks depends on those ranks only."""
    run_id = uuid4()
    statuses = []
    for size, how in ((4, "exception"), (2, "finish"), (3, "finish")):
        for rank in range(size):
            trainer = Trainer(run_id, rank, world_size=size)
            store.ingest(trainer.batch([trainer.event("init")]))
            store.ingest(trainer.batch([trainer.event(how)]))
            statuses.append(store.run(run_id)[0].status)

    assert statuses[3:6] == ["crashed", "crashed", "finished"]
    assert statuses[-1] == "finished"


def test_a_run_that_falls_quiet_is_silent(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is silent after a minute without records, or ten times a long update, and can be listed as such."""
    quick, slow = Trainer(), Trainer()
    store.ingest(quick.batch(quick.updates(3)))
    store.ingest(slow.batch([slow.update(duration=2 * SILENT_AFTER_US)]))
    times = [0, SILENT_AFTER_US + 1_000_000, 20 * SILENT_AFTER_US + 1_000_000]
    now = time.time_ns()
    seen = []
    for passed in times:
        monkeypatch.setattr("time.time_ns", lambda passed=passed: now + passed * 1000)
        seen.append([store.run(each.run_id)[0].status for each in (quick, slow)])

    assert seen == [["running", "running"], ["silent", "running"], ["silent", "silent"]]
    assert len(store.runs(Wanted(status="silent")).rows) == 2


def test_scalars_may_be_anything_a_float_is(store: Store) -> None:
    """Non-finite scalars are stored with their kind. A null without a kind is rejected."""
    trainer = Trainer()
    trainer.update()
    store.ingest(trainer.batch([trainer.scalars({"loss": math.nan, "lr": 0.1})]))
    store.ingest(trainer.batch([trainer.scalars({"loss": None}, kinds={"loss": "-inf"})]))
    with pytest.raises(BadBatch, match="null without a kind"):
        store.ingest(trainer.batch([trainer.scalars({"loss": None})]))

    assert store.run(trainer.run_id)[0].records == 2


def test_a_header_that_is_missing_is_asked_for_by_name(client: TestClient) -> None:
    """Over HTTP, records of an unknown attempt get 409 with the name of the missing header."""
    trainer = Trainer()
    batch = trainer.batch([trainer.update()])
    bare = msgspec.structs.replace(batch, headers=())
    answer = client.post(
        "/api/v1/ingest", content=wire.encode(bare), headers={"Content-Type": "application/msgpack"}
    )
    assert answer.status_code == 409
    assert answer.json()["header"] == "attempt"


def test_what_is_deleted_stays_deleted(store: Store) -> None:
    """Late records of a deleted run are acknowledged, but not stored, and a finding in the answer says so."""
    trainer = Trainer()
    updates = trainer.updates(5, sampled=[0])
    store.ingest(trainer.batch(updates[:3]))
    store.delete(trainer.run_id)
    for sender in (Sender(), Sender(projects=[trainer.project])):
        late = store.ingest(trainer.batch(updates), sender)
        assert late.ack.acked == {"scaler": 4}
        assert not late.changed
        assert [found["rule"] for found in late.ack.findings or ()] == ["deleted"]

    assert store.runs().rows == []
    with pytest.raises(NotFound):
        store.series(trainer.run_id)


def test_the_times_of_a_run_are_the_trainers(store: Store) -> None:
    """A run's times come from its records, and overhead is the monitor's share of them."""
    trainer = Trainer()
    store.ingest(trainer.batch(trainer.updates(11)))
    summary = store.run(trainer.run_id)[0]

    assert (summary.started, summary.last_time) == (START, START + 500_000)
    assert summary.elapsed == pytest.approx(0.5)
    assert summary.overhead == pytest.approx(20 / 50_000)


def test_a_rank_that_delivers_late_turns_no_time_back(store: Store) -> None:
    """The last time is not that of a rank that delivers earlier steps late. A clock that is set back counts."""
    run_id = uuid4()
    first, late = (Trainer(run_id, rank, world_size=2) for rank in (0, 1))
    store.ingest(late.batch(late.updates(1)))
    store.ingest(first.batch(first.updates(11)))
    store.ingest(late.batch(late.updates(5), ended="crashed"))
    assert store.run(run_id)[0].last_time == START + 500_000

    store.ingest(first.batch([first.update(time=START + 100_000)]))
    assert store.run(run_id)[0].last_time == START + 100_000


def test_a_new_start_whose_clock_is_behind_counts(store: Store) -> None:
    """The last time is that of the newest start, though its clock is behind and it went back to an earlier step."""
    run_id = uuid4()
    for resumed, clock in ((0, START), (100, START - 3_600_000_000)):
        ranks = [
            Trainer(run_id, rank, world_size=2, resume_step=resumed, started=clock)
            for rank in (0, 1)
        ]
        for trainer in ranks:
            updates = trainer.updates(600 - 4 * resumed)
            times = [clock + 50_000 * number for number in range(len(updates))]
            made = [
                msgspec.structs.replace(update, time=time)
                for update, time in zip(updates, times, strict=True)
            ]
            store.ingest(trainer.batch(made))
    assert store.run(run_id)[0].last_time == START - 3_600_000_000 + 199 * 50_000
