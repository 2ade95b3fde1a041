"""The store against a plain model of lists, over random histories of a run.

Histories have ranks, new attempts, late, repeated, partial and lost batches, values of every kind, and prunes.
Hypothesis shrinks a failing history. `--hypothesis-profile=long` runs five hundred.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import msgspec
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ampmon import wire
from ampmon_server.model.aggregates.updates import EVENTS, count
from ampmon_server.settings import Settings
from ampmon_server.store import Keep, Store
from ampmon_server.store.pages.windows import Stretch
from batches import START, Trainer, statistics
from databases import defects


EXAMPLES = {10: 2, 40: 10}
"""Examples here by those of the suite's and CI's profiles."""
SOME = settings(
    max_examples=EXAMPLES.get(settings().max_examples, 500),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
PAGE = 256
ALL = Keep(rows_days=0, samples_days=0)
SCALES = (1024.0, 1024.0, 1024.0, 2.0**-140, 5e-324, 0.0, -1.0, 1.7e308, np.inf, np.nan)
VALUES = (2.5, -1.0, 0.0, -0.0, 1.7e308, 5e-324, np.nan, np.inf, -np.inf)
GRADIENTS = statistics().to_wire()


class Start(NamedTuple):
    """A process that starts on a rank at a step and makes ``updates`` updates, in batches of ``cut``."""

    rank: int
    step: int
    updates: int
    cut: int


class History(NamedTuple):
    """Processes, probabilities that a batch is lost, late or repeated and that the run is pruned, and a seed."""

    starts: list[Start]
    lost: float
    late: float
    twice: float
    pruned: float
    seed: int


HISTORIES = st.builds(
    History,
    st.lists(
        st.builds(
            Start,
            st.integers(0, 2),
            st.sampled_from([0, 0, 0, 3, 200, 250, 256, 700, 4000]),
            st.sampled_from([1, 5, 60, 300, 600]),
            st.sampled_from([3, 10, 60, 400]),
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([0.0, 0.0, 0.1]),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([0.0, 0.0, 0.1]),
    st.integers(0, 2**16),
)


Name = tuple[int, str]
"""A rank and a logged name."""

Logged = dict[int, tuple[float, wire.Scalars]]
"""By step, a value and its record."""


class Model:
    """What the store must hold: per rank and step the newest attempt's update, and the first step with rows."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[int, tuple[int, wire.Update]]] = {}
        self.rows_from = 0
        self.done: dict[int, dict[int, int]] = {}
        """By rank and step, the newest attempt that did it, even if its row is pruned."""
        self.values: dict[Name, dict[int, dict[int, tuple[float, wire.Scalars]]]] = {}
        """By step and attempt, the values of steps that are not in `over`."""
        self.over: dict[Name, tuple[int, Logged]] = {}
        """The step before which values are final, since their rows are pruned, and those values."""
        self.seen: set[tuple[int, int, int]] = set()

    def add(self, rank: int, attempt: int, origin: int, records: Sequence[wire.Record]) -> None:
        """Add records. Repeated records change nothing, and neither do updates of pruned steps."""
        for record in records:
            if (rank, attempt, record.seq) in self.seen:
                continue
            self.seen.add((rank, attempt, record.seq))
            step = origin + record.ordinal
            if isinstance(record, wire.Scalars):
                self._log(rank, attempt, step, record)
                continue
            done, held = self.done.setdefault(rank, {}), self.rows.setdefault(rank, {})
            done[step] = max(done.get(step, -1), attempt)
            if step >= self.rows_from and held.get(step, (-1,))[0] < attempt:
                held[step] = (attempt, record)
        self._let_go()

    def _log(self, rank: int, attempt: int, step: int, record: wire.Scalars) -> None:
        for name, value in record.values.items():
            held = self.values.get((rank, name), {0: {}})
            if step >= min(self.rows_from, max(held) // PAGE * PAGE):
                of_step = self.values.setdefault((rank, name), {}).setdefault(step, {})
                number = float(record.kinds[name]) if value is None else value
                of_step[attempt] = number, record

    def prune(self) -> None:
        steps = [step for rows in self.rows.values() for step in rows]
        steps = steps or [step for of_name in self.values.values() for step in of_name]
        self.rows_from = max(self.rows_from, max(steps, default=0) // PAGE * PAGE)
        self._let_go()

    def _let_go(self) -> None:
        """Make values of pruned steps final. The newest page of each name keeps its rows."""
        for key, held in self.values.items():
            before = min(self.rows_from, max(held) // PAGE * PAGE)
            logged = self.logged(key)
            self.over[key] = before, {step: logged[step] for step in logged if step < before}

    def logged(self, key: Name) -> Logged:
        """The values of a name, without those that a later attempt repeated."""
        before, over = self.over.get(key, (0, {}))
        found = dict(over)
        for step, of_step in self.values[key].items():
            attempt = max(of_step)
            if step >= before and self.done.get(key[0], {}).get(step, -1) <= attempt:
                found[step] = of_step[attempt]
        return dict(sorted(found.items()))

    def run_rows(self) -> dict[int, dict[str, Any]]:
        """Each step once: the lowest rank's update, skipped or sampled if any rank's is."""
        found: dict[int, dict[str, Any]] = {}
        for rank in sorted(self.rows):
            for step, (attempt, update) in self.rows[rank].items():
                row = found.setdefault(step, {"attempt": attempt, "of": update})
                row["skipped"] = row.get("skipped", False) | update.optimizers[0].skipped
                row["sampled"] = row.get("sampled", False) | (update.gradients is not None)
        return dict(sorted(found.items()))


def play(store: Store, run_id: UUID, history: History) -> Model:
    """Send what the processes of a history record."""
    model, chance = Model(), random.Random(history.seed)
    attempts: dict[int, int] = {}
    sent, waiting = [], []
    for start in history.starts:
        trainer = Trainer(run_id, start.rank, resume_step=start.step, world_size=3)
        store.ingest(trainer.batch())  # the server numbers attempts by first contact
        attempt = attempts[start.rank] = attempts.get(start.rank, -1) + 1
        origin = (start.rank, attempt, start.step)
        sent += [(trainer, (*origin, some)) for some in _parts(trainer, start, chance)]
    while sent or waiting:
        trainer, what = sent.pop(0) if sent else waiting.pop(chance.randrange(len(waiting)))
        if sent and chance.random() < history.late:
            waiting.append((trainer, what))
        elif chance.random() >= history.lost:
            store.ingest(trainer.batch(what[3]))
            model.add(*what)
            if chance.random() < history.twice:
                waiting.append((trainer, what))
            if chance.random() < history.pruned:
                _prune(store)
                model.prune()
    return model


def _parts(trainer: Trainer, start: Start, chance: random.Random) -> Iterator[list[wire.Record]]:
    """The batches of a process. A batch may end between any two records."""
    for at in range(0, start.updates, start.cut):
        updates = range(min(start.cut, start.updates - at))
        some = [record for _ in updates for record in _recorded(trainer, chance)]
        part = chance.choice([0, 0, 0, len(some) // 2])
        yield some[:part]
        yield some[part:]


def _prune(store: Store) -> None:
    for due in store.due(ALL):
        list(store.prune(due))


def _update(trainer: Trainer, chance: random.Random) -> wire.Update:
    scale = chance.choice(SCALES)
    made = trainer.update(
        skipped=chance.random() < 0.03,
        scale=scale,
        event=chance.choice(["steady"] * 30 + list(EVENTS)),
        gradients=GRADIENTS if chance.random() < 0.02 else None,
        duration=chance.choice([None, 0.0, 7.5, 1e9]),
        cost=chance.choice([0.0, 20.0]),
        memory_peak=chance.choice([None, 0, 2**52]),
        growth_tracker=chance.choice([0, 7, 2**31 - 1]),
    )
    return msgspec.structs.replace(made, time=made.time + chance.choice([0, 0, 0, -(10**7), 10**6]))


def _recorded(trainer: Trainer, chance: random.Random) -> list[wire.Record]:
    """An update with none, one or two logged values of a name."""
    logged = [
        {name: chance.choice(VALUES)}
        for name, share in (("loss", 0.5), ("loss", 0.1), ("accuracy", 0.01))
        if chance.random() < share
    ]
    return [_update(trainer, chance), *(_logged(trainer, values, chance) for values in logged)]


def _logged(trainer: Trainer, values: dict[str, float], chance: random.Random) -> wire.Scalars:
    finite = {name: value if np.isfinite(value) else None for name, value in values.items()}
    kinds = {name: str(value) for name, value in values.items() if finite[name] is None}
    made = trainer.scalars(finite, kinds=kinds)
    user = chance.choice([None, 0, made.ordinal // 4])
    return msgspec.structs.replace(made, time=made.time + chance.randrange(10**7), user_step=user)


def check_rows(store: Store, run_id: UUID, model: Model) -> None:
    """Check that exactly the updates with rows are returned, as recorded."""
    run_rows = {step: row for step, row in model.run_rows().items() if step >= model.rows_from}
    start, found = 0, []
    while start is not None:
        columns, start, rows_from = store.updates(
            run_id, stream=None, start=start, stop=10**6, limit=700
        )
        names = (
            "step",
            "attempt",
            "time",
            "scale",
            "scale_after",
            "event",
            "skipped",
            "duration_us",
        )
        names += ("memory_peak", "growth_tracker", "cost_us")
        found += list(zip(*(columns[name] for name in names), strict=True))
    assert rows_from == model.rows_from
    expected = [
        (
            step,
            row["attempt"],
            row["of"].time,
            row["of"].scale if np.isfinite(row["of"].scale) else None,
            row["of"].scale_after if np.isfinite(row["of"].scale_after) else None,
            row["of"].event,
            row["skipped"],
            row["of"].duration,
            row["of"].memory_peak,
            row["of"].growth_tracker,
            row["of"].cost,
        )
        for step, row in run_rows.items()
    ]
    assert found == expected


def check_counts(store: Store, run_id: UUID, model: Model, chance: random.Random) -> None:
    """Check that the summary, and cells of the whole run and of windows, count each step once."""
    run_rows = model.run_rows()
    summary = store.run(run_id)[0]
    everything = (
        len(run_rows),
        sum(row["skipped"] for row in run_rows.values()),
        sum(row["sampled"] for row in run_rows.values()),
    )
    assert (summary.updates, summary.skipped, summary.sampled_updates) == everything
    for columns in (1, 10, 1000):
        assert count(store.series(run_id, columns=columns).updates) == everything
    for _ in range(3):
        low, high = sorted(chance.randrange(model.rows_from, model.rows_from + 1300) for _ in "ab")
        inside = [row for step, row in run_rows.items() if low <= step <= high]
        cells = store.series(
            run_id, start=low, stop=high + 1, columns=chance.choice([2, 40, 900])
        ).updates
        assert cells["n"].sum() == len(inside)
        assert cells["skipped"].sum() == sum(row["skipped"] for row in inside)
        assert cells["moves"].sum() == sum(row["of"].event != "steady" for row in inside)
        usable = [row["of"].scale for row in inside if row["of"].scale >= 0]
        if usable:
            assert np.nanmin(cells["scale_min"]) == min(usable)
            assert np.nanmax(cells["scale_max"]) == max(usable)


def check_logged(store: Store, run_id: UUID, model: Model, chance: random.Random) -> None:
    """Check names, values and windows of values against what was logged."""
    expected = {key: rows for key in model.values if (rows := model.logged(key))}
    names = {(each.rank, each.name): each for each in store.scalar_names(run_id)}
    assert names.keys() == expected.keys()
    for key, rows in expected.items():
        numbers = [value for value, _ in rows.values()]
        finite = [value for value in numbers if np.isfinite(value)]
        one = names[key]
        assert (one.n, one.not_finite) == (len(numbers), len(numbers) - len(finite))
        assert (one.least, one.greatest) == (min(finite, default=None), max(finite, default=None))
        assert (one.step, one.time) == (max(rows), rows[max(rows)][1].time)
        check_values(store, run_id, int(one.stream), key, rows, model.rows_from)
        low, high = sorted(chance.randrange(model.rows_from, model.rows_from + 1300) for _ in "ab")
        columns = chance.choice([2, 40, 900])
        cells = store.scalar_series(
            run_id, key[1], Stretch(low, high + 1), stream=int(one.stream), columns=columns
        )
        inside = [value for step, (value, _) in rows.items() if low <= step <= high]
        assert cells["n"].sum() == len(inside)
        finite = [value for value in inside if np.isfinite(value)]
        if finite:
            assert (np.nanmin(cells["value_min"]), np.nanmax(cells["value_max"])) == (
                min(finite),
                max(finite),
            )


def check_values(
    store: Store, run_id: UUID, stream: int, key: Name, rows: Logged, rows_from: int
) -> None:
    """Check that exactly the values with rows are returned."""
    start, found = 0, []
    while start is not None:
        page = store.scalars(
            run_id, key[1], stream=stream, start=start, stop=10**6, limit=len(rows) // 3 + 1
        )
        found += zip(page.step, page.time, page.user_step, page.value, page.value_kind, strict=True)
        start = page.next
    assert found == [
        (step, record.time, record.user_step, *_stored(value))
        for step, (value, record) in rows.items()
        if step >= rows_from
    ]


def _stored(value: float) -> tuple[float | None, str | None]:
    return (value, None) if np.isfinite(value) else (None, str(value))


def check_times(store: Store, run_id: UUID, model: Model, chance: random.Random) -> None:
    """Check that a time window of an unpruned run holds exactly its updates."""
    low, high = sorted(START + 50_000 * chance.randrange(0, 1300) for _ in "ab")
    inside = [row for row in model.run_rows().values() if low <= row["of"].time <= high]
    cells = store.series(run_id, start=low, stop=high + 1, by="time", columns=100).updates
    assert cells["n"].sum() == len(inside)
    assert cells["skipped"].sum() == sum(row["skipped"] for row in inside)


@SOME
@given(HISTORIES)
def test_the_store_holds_what_a_plain_model_does(
    store: Store, settings: Settings, history: History
) -> None:
    """For any history, updates, totals, logged values and cells equal the model's, and `db verify` finds no error."""
    run_id, chance = uuid4(), random.Random(history.seed)
    model = play(store, run_id, history)
    check_rows(store, run_id, model)
    check_counts(store, run_id, model, chance)
    check_logged(store, run_id, model, chance)
    if not model.rows_from:
        check_times(store, run_id, model, chance)
    assert defects(settings, run_id) == []
