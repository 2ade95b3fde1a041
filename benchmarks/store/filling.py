"""Fills a store with a long run, far faster than ingest could: rows in bulk, then the store's own repair of rollups.

The first batch is ingested, so ingest itself creates the attempt and the stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product, repeat
from typing import Any
from uuid import UUID, uuid4

import numpy as np
from sqlalchemy import Connection, Table, select, update

from ampmon import wire
from ampmon.numerics.histogram import Statistics
from ampmon_server.model.aggregates.updates import ROWS, Rows
from ampmon_server.settings import Settings
from ampmon_server.store import Store, Verification
from ampmon_server.store.engine import engine
from ampmon_server.store.engine.opening import Opened, url_of
from ampmon_server.store.engine.rows import insert_rows
from ampmon_server.store.ingest import ingest
from ampmon_server.store.ingest.roster import Remembered, Roster
from ampmon_server.store.pages.packing import Sample
from ampmon_server.store.samples import gradients, parameter_rollups, totals
from ampmon_server.store.schema.tables import ledger, metadata, skips
from ampmon_server.store.streams import attempts
from ampmon_server.store.streams import state as run_state
from ampmon_server.store.streams.attempts import Attempt
from ampmon_server.store.streams.scalers import StreamSource
from ampmon_server.store.streams.state import RunState
from ampmon_server.store.updates import scalars as logged
from ampmon_server.store.updates.updates import PAGES
from benchmarks.paired import shown
from benchmarks.store.samples import SCALE, Real, shifted
from benchmarks.store.track import Track


SAMPLED_EVERY = 100
LOGGED_EVERY = 10
"""The user logs a loss once in this many updates."""

START = 1_790_000_000_000_000
"""The time of the first update, in microseconds since the epoch. The others follow about 50 ms apart."""

SPACING_US = 50_000
STREAM = "scaler"
MODULES, MODULES_EVERY = 12, 16
"""The activations of `MODULES` modules are measured in one of `MODULES_EVERY` samples."""

_CHUNK = 100_000
_SAMPLES = 32 * 20


def fill(settings: Settings, runs: Sequence[tuple[Track, Real]]) -> list[UUID]:
    """Store a run for each track, with one in a hundred updates sampled. Blocks and shows progress."""
    Store.open(settings).close()
    database = engine.open_engine(url_of(settings))
    made = []
    for track, real in runs:
        filling = _Filling(track, real)
        with engine.writing(database) as connection:
            filling.fill(connection)
        Verification(Opened("", database, None, None)).repair(filling.run_id)
        made.append(filling.run_id)
    database.dispose()
    return made


def copy(source: Settings, target: Settings, made: Sequence[UUID]) -> None:
    """Copy all rows of runs from one store to another. Blocks and shows progress."""
    Store.open(target).close()
    filled, empty = (
        engine.open_engine(url_of(source)),
        engine.open_engine(url_of(target)),
    )
    with engine.reading(filled) as reading, engine.writing(empty) as writing:
        _unhurried(writing)
        for run_id, table in shown([*product(made, metadata.sorted_tables)], "copied"):
            if "run_id" not in table.c:
                continue
            rows = reading.execute(select(table).where(table.c.run_id == run_id.bytes)).cursor
            while rows is not None and (some := rows.fetchmany(_CHUNK)):
                _put(writing, table, some)
    if empty.dialect.name == "postgresql":
        with engine.writing(empty) as writing:
            _unhurried(writing)
            writing.exec_driver_sql("ANALYZE")
    filled.dispose()
    empty.dispose()


def _put(connection: Connection, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
    if connection.dialect.name == "sqlite":
        insert_rows(connection, table, rows)
        return
    driver: Any = connection.connection.driver_connection
    columns = ", ".join(table.c.keys())
    with driver.cursor() as cursor, cursor.copy(f"COPY {table} ({columns}) FROM STDIN") as copied:
        for row in rows:
            copied.write_row(row)


def _unhurried(connection: Connection) -> None:
    """On PostgreSQL, turn off the statement timeout and the foreign key checks of this transaction."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")


class _Filling:
    def __init__(self, track: Track, real: Real) -> None:
        self.run_id = uuid4()
        self._track, self._real = track, real
        self._times = START + SPACING_US * np.arange(len(track), dtype=np.int64)
        self._times[1:] += np.random.default_rng(1).integers(-9000, 9000, len(track) - 1)

    def fill(self, connection: Connection) -> None:
        batch = self._first()
        ingest.ingest(connection, batch, START)
        state = run_state.lock(connection, self.run_id)
        assert state is not None
        attempt, *_ = attempts.resolve(connection, batch, state, START, {})
        roster = Roster(connection, state, attempt, Remembered())
        roster.introduce(batch, {STREAM})
        stream = roster.mine(STREAM)
        self._put_updates(connection, stream)
        newest = self._put_samples(connection, attempt, stream)
        if newest is not None:
            gradients.summarize(state, totals.series(newest[-1:]))
        self._count(connection, state, stream, roster)
        if connection.dialect.name == "postgresql":  # as autovacuum does during normal ingest
            _unhurried(connection)
            connection.exec_driver_sql("ANALYZE")

    def _first(self) -> wire.Batch:
        attempt_id = uuid4()
        header = wire.AttemptHeader(
            run_id=self.run_id,
            attempt_id=attempt_id,
            project="benchmark",
            name=f"{len(self._track)} updates",
            owner="benchmark",
            started=START,
        )
        stream = wire.StreamHeader(
            stream=STREAM,
            scaler="GradScaler",
            device="cuda",
            parameters=self._real.parameters,
            modules=tuple(wire.Module(f"blocks.{place}", "Block") for place in range(MODULES)),
        )
        first = wire.Update(
            stream=STREAM,
            seq=0,
            ordinal=0,
            time=START,
            scale=float(self._track.scale[0]),
            scale_after=float(self._track.scale_after[0]),
            growth_tracker=1,
            event="steady",
            optimizers=(wire.OptimizerStep(optimizer="AdamW", path="unscaled"),),
            gradients=self._real.samples[0].to_wire(),
        )
        return wire.Batch(
            schema_version=wire.SCHEMA_VERSION,
            run_id=self.run_id,
            attempt_id=attempt_id,
            headers=(header, stream),
            records=(first,),
        )

    def _put_updates(self, connection: Connection, stream: StreamSource) -> None:
        chunks = range(1, len(self._track), _CHUNK)
        for first in shown(chunks, f"{len(self._track)} updates"):
            within = slice(first, min(first + _CHUNK, len(self._track)))
            key = (self.run_id.bytes, stream.number)
            PAGES.put(connection, {key: self._updates(within)})
            logged.PAGES.put(connection, {(*key, "loss"): self._logged(within)})
            insert_rows(connection, skips, list(self._skips(stream, within)))

    def _updates(self, within: slice) -> Rows:
        track, rows = self._track, np.zeros(within.stop - within.start, ROWS)
        rows["step"] = np.arange(within.start, within.stop)
        rows["time"] = self._times[within]
        for name in ("scale", "scale_after", "growth_tracker", "event", "skipped"):
            rows[name] = getattr(track, name)[within]
        rows["sampled"] = rows["step"] % SAMPLED_EVERY == 0
        rows["paths"], rows["memory_peak"] = 2, -1
        rows["duration_ns"] = 1000 * np.diff(self._times[within.start - 1 : within.stop])
        rows["cost_ns"] = np.random.default_rng(within.start).integers(8_000, 30_000, len(rows))
        return rows

    def _skips(self, stream: StreamSource, within: slice) -> Iterator[tuple[Any, ...]]:
        track = self._track
        steps = np.arange(within.start, within.stop)[track.skipped[within]]
        columns: dict[str, Any] = {
            "run_id": self.run_id.bytes,
            "step": steps,
            "stream": stream.number,
            "attempt": 0,
            "optimizer": 0,
            "time": self._times[steps],
            "name": "AdamW",
            "path": "unscaled",
            "cause": "inf",
            "scale": track.scale[steps],
            "scale_after": track.scale_after[steps],
            "kinds": 0,
            "culprits": "[[2,31,0],[3,7,0]]",
            "culprit_order": "learned",
            "culprit_parameters": 2,
            "origin": None,
            "origin_module": None,
            "loss": None,
        }
        return _rows(skips.c.keys(), columns, len(steps))

    def _logged(self, within: slice) -> Rows:
        steps = np.arange(within.start, within.stop)
        steps = steps[steps % LOGGED_EVERY == 0]
        chance = np.random.default_rng(within.start)
        rows = np.zeros(len(steps), logged.PAGES.dtype)
        rows["step"], rows["time"], rows["user_step"] = steps, self._times[steps], 4 * steps
        rows["value"] = 2 + 9 / (1 + steps / 1e4) + 0.1 * chance.standard_normal(len(steps))
        return rows

    def _put_samples(
        self, connection: Connection, attempt: Attempt, stream: StreamSource
    ) -> totals.Samples | None:
        parameter_rollups.add_names(connection, stream)
        newest = None
        chance = np.random.default_rng(2)
        steps = range(SAMPLED_EVERY, len(self._track), SAMPLED_EVERY)
        chunks = range(0, len(steps), _SAMPLES)
        for first in shown(chunks, f"{len(steps)} samples"):
            samples = [self._sample(step, chance) for step in steps[first : first + _SAMPLES]]
            newest = gradients.write(connection, attempt, stream, samples)
            passed = [_through_modules(each) for each in samples[::MODULES_EVERY]]
            gradients.write_modules(connection, attempt, stream, passed)
        return newest

    def _sample(self, step: int, chance: np.random.Generator) -> Sample:
        varied = self._real.varied(chance)
        scale = float(self._track.scale[step])
        moved = round(np.log2(scale / SCALE))
        return Sample(step, int(self._times[step]), scale, shifted(varied, moved))

    def _count(
        self, connection: Connection, state: RunState, stream: StreamSource, roster: Roster
    ) -> None:
        """Update the totals of the run, its stream and the ledger."""
        count, track = len(self._track), self._track
        sampled = len(range(0, count, SAMPLED_EVERY))
        records = count + len(range(LOGGED_EVERY, count, LOGGED_EVERY))
        stream.updates, stream.sampled, stream.last_step = count, sampled, count - 1
        roster.save(stream)
        state.updates, state.skipped, state.sampled = count, int(track.skipped.sum()), sampled
        state.records, state.last_step, state.last_time = records, count - 1, int(self._times[-1])
        state.scale = float(track.scale_after[-1])
        run_state.save(connection, state)
        table = ledger.c
        connection.execute(
            update(ledger)
            .where(table.run_id == state.run_id, table.stream == stream.number)
            .values(last_seq=records - 1, last_step=count - 1)
        )


def _through_modules(sample: Sample) -> Sample:
    """Make up the activations of `MODULES` modules from the gradients of as many parameters."""
    chosen = np.arange(2, 2 + MODULES)
    statistics = Statistics(
        **{
            name: getattr(sample.statistics, name)[chosen]
            for name in Statistics.__dataclass_fields__
        }
    ).renumbered(np.arange(MODULES))
    beside = {"elements": statistics.looked, "forward": 1e3 * statistics.amax}
    return Sample(sample.step, sample.time, sample.scale, statistics, beside)


def _rows(names: Sequence[str], columns: dict[str, Any], count: int) -> Iterator[tuple[Any, ...]]:
    """Tuples in the order of ``names``. Arrays give one element each, other values repeat."""
    return zip(
        *(
            columns[name].tolist()
            if isinstance(columns[name], np.ndarray)
            else repeat(columns[name], count)
            for name in names
        ),
        strict=True,
    )
