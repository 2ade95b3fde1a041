"""Overlapping attempts on several ranks, with clocks that jump, checked against a plain model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID, uuid4

import msgspec
from hypothesis import HealthCheck, given
from hypothesis import settings as configured
from hypothesis import strategies as st

from ampmon import wire
from ampmon_server.settings import Settings
from ampmon_server.store import Store
from batches import START, Trainer, statistics
from databases import defects


HOUR_US = 3600 * 1_000_000


class Step(NamedTuple):
    """One update: its scale is ``2**scale``, its clock ``off`` hours wrong."""

    skipped: bool
    sampled: bool
    logged: bool
    scale: int
    off: int


STEPS = st.builds(
    Step,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 20),
    st.sampled_from([0, 0, 0, 0, 5, -5]),
)


class Start(NamedTuple):
    """A process start on a rank: where it resumes, and its updates."""

    rank: int
    resume_step: int
    steps: list[Step]


STARTS = st.lists(
    st.builds(
        Start, st.integers(0, 2), st.integers(0, 30), st.lists(STEPS, min_size=1, max_size=24)
    ),
    min_size=1,
    max_size=6,
)


class Model:
    """What a run should be: of each rank and step the newest attempt's update, of each step the lowest rank's."""

    def __init__(self, run_id: UUID, starts: Sequence[Start]) -> None:
        self.sent: list[tuple[Trainer, list[wire.Record]]] = []
        self.of_rank: dict[tuple[int, int], wire.Update] = {}
        self.seqs: dict[tuple[Trainer, str], set[int]] = {}
        for start in starts:
            trainer = Trainer(run_id, start.rank, resume_step=start.resume_step)
            records: list[wire.Record] = []
            for index, step in enumerate(start.steps):
                update = trainer.update(
                    skipped=step.skipped,
                    scale=2.0**step.scale,
                    time=START + 50_000 * index + step.off * HOUR_US,
                    gradients=statistics(seed=index).to_wire() if step.sampled else None,
                )
                records.append(update)
                if step.logged:
                    records.append(trainer.scalars({"loss": float(index)}))
                self.of_rank[start.rank, start.resume_step + index] = update
            self.sent.append((trainer, records))

    @property
    def of_step(self) -> dict[int, wire.Update]:
        lowest: dict[int, wire.Update] = {}
        for (_, step), update in sorted(self.of_rank.items(), key=lambda item: -item[0][0]):
            lowest[step] = update
        return dict(sorted(lowest.items()))

    def steps(self, name: str) -> set[int]:
        """The steps that were ``skipped`` or ``sampled`` on any rank."""
        found = {
            "skipped": lambda update: update.optimizers[0].skipped,
            "sampled": lambda update: update.gradients is not None,
        }[name]
        return {step for (_, step), update in self.of_rank.items() if found(update)}


def deliver(store: Store, model: Model, order: random.Random, cut: int, lose: bool) -> int:
    """Send all records in shuffled pieces, half of them twice, some never if ``lose``; return how many are lost.

    Each acknowledgement must name the last seq that the server holds.
    """
    pieces = [
        (trainer, records[first : first + cut])
        for trainer, records in model.sent
        for first in range(0, len(records), cut)
    ]
    for trainer, _ in model.sent:  # the server numbers attempts in order of arrival
        store.ingest(trainer.batch())
    again = order.sample(pieces, len(pieces) // 2)
    held: dict[UUID, set[int]] = {}
    for trainer, records in order.sample([*pieces, *again], len(pieces) + len(again)):
        kept = [
            each
            for each in records
            if not (lose and each.seq % 7 == 3 and type(each) is wire.Scalars)
        ]
        if not kept:
            continue
        seqs = held.setdefault(trainer.attempt_id, set())
        seqs |= {each.seq for each in kept}
        order.shuffle(kept)
        kept.sort(key=lambda each: type(each) is wire.Update and each.ordinal)  # updates in order
        assert store.ingest(trainer.batch(kept)).ack.acked == {trainer.scaler: max(seqs)}
    return sum(max(seqs) + 1 - len(seqs) for seqs in held.values())


@configured(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    starts=STARTS,
    seed=st.integers(0, 2**16),
    cut=st.integers(1, 6),
    lose=st.booleans(),
    window=st.tuples(st.integers(-6, 6), st.integers(1, 8)),
)
def test_what_is_reported_is_what_was_done_last(
    store: Store,
    settings: Settings,
    starts: list[Start],
    seed: int,
    cut: int,
    lose: bool,
    window: tuple[int, int],
) -> None:
    """Totals, step rows, time-window counts and verification agree with the model, in any order of arrival."""
    run_id = uuid4()
    model = Model(run_id, starts)
    lost = deliver(store, model, random.Random(seed), cut, lose)
    summary, _ = store.run(run_id)
    done = model.of_step
    columns = store.updates(run_id, stream=None, start=0, stop=100, limit=1000).columns
    low, high = (START + hours * HOUR_US for hours in (window[0], sum(window)))
    of_time = store.series(run_id, start=max(low, 0), stop=high, by="time").updates
    within = [step for step, update in done.items() if low <= update.time < high]

    assert (summary.updates, summary.skipped, summary.sampled_updates) == (
        len(done),
        len(model.steps("skipped")),
        len(model.steps("sampled")),
    )
    assert summary.effective_updates == summary.updates - summary.skipped
    assert (summary.lost_records, summary.status) == (lost, "running")
    assert columns["step"] == list(done)
    assert columns["time"] == [update.time for update in done.values()]
    assert columns["scale"] == [update.scale for update in done.values()]
    assert [step for step, flag in zip(done, columns["skipped"], strict=True) if flag] == sorted(
        model.steps("skipped")
    )
    assert int(of_time["n"].sum()) == len(within)
    assert int(of_time["skipped"].sum()) == len(model.steps("skipped").intersection(within))
    assert defects(settings, run_id) == []


def test_a_clock_that_was_ahead_is_forgotten(store: Store) -> None:
    """A run's last time is its newest record's, even after a clock that was hours ahead is corrected."""
    trainer = Trainer()
    updates = trainer.updates(5)
    ahead = [msgspec.structs.replace(each, time=each.time + 5 * HOUR_US) for each in updates[2:4]]
    seen = []
    for some in (updates[:2], ahead, updates[4:]):
        store.ingest(trainer.batch(some))
        summary = store.run(trainer.run_id)[0]
        seen.append((summary.last_time, summary.status))

    assert [(time, status) for time, status in seen] == [
        (updates[1].time, "running"),
        (updates[3].time + 5 * HOUR_US, "running"),
        (updates[4].time, "running"),
    ]


def test_a_ledger_of_resends_stays_short(store: Store) -> None:
    """Records sent in random order, each many times, end as one range, and each ack names the last seq held."""
    trainer = Trainer()
    records = trainer.updates(300)
    order = random.Random(3)
    held: set[int] = set()
    for _ in range(40):
        first = order.randrange(290)
        some = records[first : first + order.randrange(1, 60)]
        held |= {each.seq for each in some}
        ack = store.ingest(trainer.batch(some)).ack
        assert ack.acked == {"scaler": max(held)}
        missing = store.run(trainer.run_id)[0].lost_records
        assert missing == max(held) + 1 - len(held)
    store.ingest(trainer.batch(records))
    with store._engine.connect() as connection:
        ranges = connection.exec_driver_sql("SELECT first_seq, last_seq FROM ledger").all()

    assert [tuple(each) for each in ranges] == [(0, 299)]
