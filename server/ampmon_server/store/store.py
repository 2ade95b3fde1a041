"""Provides the store to the service. Each call is one transaction and blocks until the database answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Connection

from ampmon import wire
from ampmon_server.model.aggregates import gradients
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.aggregates.updates import empty
from ampmon_server.model.scale_policy import ScalePolicy
from ampmon_server.model.series import ModuleSample, ParameterSample, Resume, UserSteps
from ampmon_server.settings import Settings
from ampmon_server.store.access import AccessCalls
from ampmon_server.store.admin.prune import PruneCalls
from ampmon_server.store.engine import engine
from ampmon_server.store.engine.engine import reads, writes
from ampmon_server.store.engine.errors import NotFound, Unusable
from ampmon_server.store.engine.numbers import INTEGER_MAX
from ampmon_server.store.engine.opening import Opened, open_database
from ampmon_server.store.forwarding import Forwarding
from ampmon_server.store.ingest.ingest import (
    ANYONE,
    Asked,
    Memory,
    Outcome,
    Receipt,
    Sender,
    ingest_together,
)
from ampmon_server.store.pages.recent import MOST, Recent
from ampmon_server.store.pages.windows import WHOLE, Stretch
from ampmon_server.store.reading import columns
from ampmon_server.store.reading.alarms import AlertCalls
from ampmon_server.store.runs import cases, listing, runs
from ampmon_server.store.runs.runs import Identity, Summary
from ampmon_server.store.samples import modules, parameter_rollups, parameters, samples
from ampmon_server.store.samples.parameter_rollups import ParameterSeries, PartOf, whole
from ampmon_server.store.samples.parameters import ALL, ParameterQuery
from ampmon_server.store.samples.samples import ExportedSample
from ampmon_server.store.schema import migrations
from ampmon_server.store.streams import scalers, state
from ampmon_server.store.streams.scalers import Scaler
from ampmon_server.store.updates import events, logged, ranks, skips, updates
from ampmon_server.store.updates.logged import Axis


@dataclass(frozen=True, slots=True)
class ScalerSeries:
    """The data that figures draw of one scaler."""

    updates: Cells
    gradients: Cells
    scaler: Scaler
    user: UserSteps | None = None
    resumes: tuple[Resume, ...] = ()
    """The attempts that resumed the scaler, in the whole run."""
    stretch: Stretch | None = None
    """The range, and if it is one of time, the steps of its samples. None if it is of steps that are not known."""


def policy(connection: Connection, run_id: UUID, *, stream: int | None = None) -> ScalePolicy:
    """Return the scale policy of a scaler and how the script created it. Raises NotFound."""
    return cases.policy_of(connection, scalers.find(connection, run_id, stream))


def scaler_name(connection: Connection, run_id: UUID, *, stream: int | None = None) -> str:
    """Return the name of a stream's scaler, or of the run's first scaler. Raises NotFound."""
    return scalers.find(connection, run_id, stream).name


def sampled_parameters(
    connection: Connection,
    run_id: UUID,
    *,
    stream: int | None = None,
    step: int = INTEGER_MAX,
    page: ParameterQuery = ALL,
) -> parameters.SampledUpdate:
    """Return a page of the parameters of the newest sample at or before ``step``. Raises NotFound."""
    scaler = scalers.find(connection, run_id, stream)
    return parameters.rows_of(samples.read_newest(connection, scaler, step), page)


def parameter_sample(
    connection: Connection,
    run_id: UUID,
    name: str,
    *,
    stream: int | None = None,
    start: int = 0,
    stop: int = INTEGER_MAX + 1,
    by: Axis = "step",
) -> ParameterSample | None:
    """Return a parameter at the newest sample with ``start`` <= x < ``stop``.

    Return None if there is no such sample or the parameter is not in it. Raises NotFound for an unknown run or stream.
    """
    scaler = scalers.find(connection, run_id, stream)
    first, after = _steps(connection, scaler, start, stop, by)
    try:
        shards = samples.read_newest(connection, scaler, after - 1)
    except NotFound:
        return None
    return parameters.sample_of(shards, name) if shards[0].sample.step >= first else None


def sampled_modules(
    connection: Connection, run_id: UUID, *, stream: int | None = None, step: int = INTEGER_MAX
) -> modules.SampledModules:
    """Return the modules of the newest activation sample at or before ``step``. Raises NotFound."""
    sample, _ = activations(connection, run_id, stream=stream, stop=step + 1)
    if sample is None:
        raise NotFound(f"No activation sample at or before step {step} is stored.")
    return modules.rows_of(sample)


def activations(
    connection: Connection,
    run_id: UUID,
    *,
    stream: int | None = None,
    start: int = 0,
    stop: int = INTEGER_MAX + 1,
    by: Axis = "step",
) -> tuple[ModuleSample | None, bool]:
    """Return the newest activation sample with ``start`` <= x < ``stop``, and whether the scaler is disabled.

    Raises NotFound for an unknown run or stream.
    """
    scaler = scalers.find(connection, run_id, stream)
    first, after = _steps(connection, scaler, start, stop, by)
    sample = modules.read_newest(connection, scaler, start=first, stop=after)
    return sample, scaler.disabled


def _steps(
    connection: Connection, scaler: Scaler, start: int, stop: int, by: Axis
) -> tuple[int, int]:
    """The steps with ``start`` <= x < ``stop``, end excluded; (0, 0) if there are none."""
    found = logged.stretch_of(connection, scaler, start=start, stop=stop, by=by)
    return (0, 0) if found is None else updates.steps(connection, scaler, found[0])


class _AskedSeries(NamedTuple):
    run_id: UUID
    stream: int | None
    start: int
    stop: int
    by: Axis
    columns: int
    rank: int | None


def _updates(connection: Connection, asked: _AskedSeries) -> ScalerSeries:
    """The updates of a range, and of a rank its samples too."""
    run_id, stream, start, stop, by, columns, rank = asked
    scaler = scalers.find(connection, run_id, stream)
    found = logged.stretch_of(connection, scaler, start=start, stop=stop, by=by, columns=columns)
    if found is None:
        return ScalerSeries(empty(), gradients.empty(), scaler)
    stretch, user = found
    if rank is None:
        cells, sampled = updates.window(connection, scaler, stretch, columns), gradients.empty()
        stretch = updates.narrowed(scaler, stretch, cells)
    else:
        cells, sampled = ranks.window(connection, scaler, rank, stretch)
    for each in (cells, sampled):
        each.flags.writeable = False
    resumes = events.resumes(connection, scaler)
    return ScalerSeries(cells, sampled, scaler, user, resumes, stretch)


def _sampled(connection: Connection, asked: _AskedSeries, found: ScalerSeries) -> ScalerSeries:
    """A range with its samples, whose updates were found before."""
    # Anew, because cells and rows must be of one snapshot.
    scaler = scalers.find(connection, asked.run_id, asked.stream)
    # Charts draw samples in columns of four pixels.
    cells = samples.window(connection, scaler, found.stretch or WHOLE, asked.columns // 4)
    cells.flags.writeable = False
    return replace(found, gradients=cells)


class Store(AccessCalls, AlertCalls, Forwarding, PruneCalls):
    """A database with the current schema. Reads may come from any thread, writes from one thread at a time.

    Every call may raise Busy and Unreadable. If the database is `shared`, several threads may write at once.
    """

    def __init__(self, opened: Opened) -> None:
        self._opened, self._engine = opened, opened.engine
        # A series takes two places: with its samples, and without them.
        self._recent: Recent[ScalerSeries] = Recent(most=2 * MOST)
        self._memory = Memory()

    @classmethod
    def open(cls, settings: Settings) -> Store:
        """Open the database of the settings. Create it or upgrade an SQLite file if needed. Raises Unusable."""
        return cls(open_database(settings))

    def close(self) -> None:
        """Close all connections and release the lock of an SQLite file."""
        self._opened.close()

    @property
    def shared(self) -> bool:
        """Whether other server processes may use the same database, and several threads may write to it at once."""
        return self._opened.exclusive is None

    def check(self) -> None:
        """Raise Busy unless the database answers, and Unusable if its schema is no longer this version's."""
        with engine.reading(self._engine) as connection:
            found = migrations.schema(connection)
        if found.age != "current":
            raise Unusable(
                f"The schema of the database changed to {found.revision}: restart this server."
            )

    def file_bytes(self) -> int | None:
        """Return the size of an SQLite file with its log; None for PostgreSQL or a missing file. Runs no query."""
        if self._engine.dialect.name != "sqlite":
            return None
        file = Path(self._engine.url.database or "")
        try:
            files = (file, *file.parent.glob(f"{file.name}-wal"))
            return sum(each.stat().st_size for each in files)
        except OSError:
            return None

    # -- writes -----------------------------------------------------------------------------------------------------

    def ingest(self, batch: wire.Batch, sender: Sender = ANYONE) -> Receipt:
        """Store a batch once. On return it is committed.

        Raises BadBatch, UnknownHeader, or NotFound if the sender may not write the run, with nothing stored.
        """
        (outcome,) = self.ingest_together([(batch, sender)])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def ingest_together(self, asked: Sequence[Asked]) -> list[Outcome]:
        """Store batches in one transaction, each once or not at all. Return the receipt or the error of each."""
        return ingest_together(self._engine, self._memory, asked)

    edit = writes(runs.change)
    ask = writes(runs.ask)
    delete = writes(runs.mark_deleted)

    # -- reads ------------------------------------------------------------------------------------------------------

    scales = reads(updates.scales)
    groups = reads(listing.read_groups)
    subject = reads(runs.subject)
    versions = reads(runs.read_versions)
    held = reads(state.held)
    runs = reads(listing.read_page)
    changes_since = reads(state.changed_since)
    history = reads(cases.history)
    gradient_samples = reads(cases.samples_of)
    nearest_skip = reads(skips.nearest)
    scalar_names = reads(logged.names)
    scalars = reads(logged.values)
    scalar_series = reads(logged.cells)
    skips = reads(skips.read)
    ranks = reads(ranks.beside)
    events = reads(events.read)
    policy = reads(policy)
    scaler_name = reads(scaler_name)
    parameter_sample = reads(parameter_sample)
    activations = reads(activations)
    parameters = reads(sampled_parameters)
    modules = reads(sampled_modules)
    _updates = reads(_updates)
    _sampled = reads(_sampled)

    def run(self, run_id: UUID) -> tuple[Summary, Identity]:
        """Return the summary and identity of a run. Raises NotFound."""
        with engine.reading(self._engine) as connection:
            return runs.read_one(connection, run_id), runs.identity(connection, run_id)

    def samples(self, run_id: UUID) -> Iterator[ExportedSample]:
        """Yield every sample that no later attempt did again, by scaler, then rank, then step. Raises NotFound."""
        return samples.exported(self._engine, run_id)

    def updates(
        self, run_id: UUID, *, stream: int | None, start: int, stop: int, limit: int
    ) -> columns.ColumnsPage:
        """Return columns of updates, and the step where the next page starts. Raises NotFound."""
        with engine.reading(self._engine) as connection:
            scaler = scalers.find(connection, run_id, stream)
            return columns.read(connection, scaler, start=start, stop=stop, limit=limit)

    def series(
        self,
        run_id: UUID,
        *,
        stream: int | None = None,
        start: int = 0,
        stop: int = INTEGER_MAX + 1,
        by: Axis = "step",
        columns: int = 1000,
        rank: int | None = None,
        sampled: bool = True,
    ) -> ScalerSeries:
        """Return updates and samples with ``start`` <= x < ``stop``, in enough cells to fill ``columns`` columns.

        x is the step, the time in us since the epoch, or the user's own step. The series is empty if ``by`` is "user"
        and no such steps were logged. Unless ``sampled``, samples are left out. With ``rank``, return the newest 32768
        updates of that rank and their samples, one by one. Calls within a short time, with equal arguments and run
        version, share the same read-only arrays. Raises NotFound.
        """
        asked = _AskedSeries(run_id, stream, start, stop, by, columns, rank)
        key = self.held(run_id), asked
        found = self._recent.get(key, lambda: self._updates(asked))
        if not sampled or rank is not None or found.stretch is None:
            return found
        return self._recent.get((*key, "sampled"), lambda: self._sampled(asked, found))

    def parameter_series(
        self,
        run_id: UUID,
        stretch: Stretch | None = WHOLE,
        *,
        stream: int | None = None,
        columns: int = 125,
        part_of: PartOf = whole,
    ) -> ParameterSeries:
        """Return the gradients of each parameter in a stretch, in enough cells to fill ``columns``; none without one.

        ``part_of`` selects parameters and fields; by default all. Of sharded gradients, return the shard of the stream,
        or without a stream, of the lowest rank. Raises NotFound.
        """
        with engine.reading(self._engine) as connection:
            scaler = scalers.find(connection, run_id, stream)
            return parameter_rollups.read(connection, scaler, stream, stretch, columns, part_of)
