"""Reads the data that a run is judged by, and replayed from. It is bounded, for runs of any length and any ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any
from uuid import UUID

import numpy as np
from sqlalchemy import Connection, select

from ampmon_server.analysis.policy.history import UPDATES_MAX, History
from ampmon_server.model.aggregates.merging import NEVER, Cells
from ampmon_server.model.aggregates.updates import of_rows
from ampmon_server.model.case import CULPRITS, LOST, RECENT, SKIPS, Case, ParameterCase, ScalerCase
from ampmon_server.model.scale_policy import ScalePolicy
from ampmon_server.model.series import GradientSeries, empty_gradients, join_samples, take
from ampmon_server.store.alerts import alerts
from ampmon_server.store.engine.engine import now_us
from ampmon_server.store.engine.errors import NotFound
from ampmon_server.store.engine.numbers import decode_object
from ampmon_server.store.engine.rows import fetch, of_attempt
from ampmon_server.store.pages.windows import Stretch
from ampmon_server.store.runs import runs
from ampmon_server.store.samples import parameter_rollups, samples
from ampmon_server.store.schema import tables
from ampmon_server.store.schema.tables import attempts, headers
from ampmon_server.store.streams import state
from ampmon_server.store.streams.attempts import RANKS_MAX, Start, newest_start
from ampmon_server.store.streams.scalers import Scaler, find, scalers_of
from ampmon_server.store.updates import events, scalars, skips, updates
from ampmon_server.store.updates.ranks import compared
from ampmon_server.store.updates.updates import read_cells, read_rows, with_skips


SCALERS, EVENTS, NAMES = 8, 500, 8
"""The most that are read: the first scalers, the newest events, and logged names in the order of `_first`."""

ENDED = ("finished", "crashed")

COLUMNS = 400
"""Columns of a window over the whole run, which returns a quarter to four times as many cells."""

RANK_UPDATES = 256
NEWEST, PARAMETER_SAMPLES = 512, 64
"""The newest samples read one by one, and by parameter. Of sharded gradients, the former counts shards."""

PARAMETER_VALUES = 20_000
"""The most rows read by parameter. Models with very many parameters get fewer samples, but at least 8."""

MOVES, BESIDE = 16, 256
"""How many older scale changes to find samples beside, and within how many steps. One update in 200 is sampled."""


def read(connection: Connection, run_id: UUID) -> Case:
    """Return the data that a run is judged by. The cost does not depend on the run's length. Raises NotFound."""
    now = now_us()
    row = state.find(connection, run_id)
    start = newest_start(connection, row.run_id) if row.attempts > 1 else None
    every = sorted(scalers_of(connection, row.run_id), key=lambda each: each.number)
    found = [each.since(start) for each in every[:SCALERS]]
    status = runs.status_of(row, now)
    is_past = status in ENDED and any(each.rows_from for each in found)
    return Case(
        run_id=str(run_id),
        now=now,
        version=row.version,
        status=status,
        # A trainer's clock that runs ahead must not hide its silence.
        last_time=None if row.last_time is None else min(row.last_time, state.heard(row)),
        update_us=row.update_us,
        updates=row.updates,
        skipped=row.skipped,
        scheduled=row.scheduled,
        lost=row.lost,
        dropped=row.dropped,
        rivals=row.rivals,
        attempts=row.attempts,
        ranks=row.ranks,
        begun=start is None or start.begun,
        scalers=tuple(
            _scaler(connection, run_id, each, start, is_first=not place)
            for place, each in enumerate(found)
        ),
        # Lints come at the start, and measurements seldom: newer events must not push them out.
        events=tuple(events.newest(connection, run_id, EVENTS, always=("lint", "measured"))),
        config=_config(connection, row.run_id),
        measurement=row.measurement,
        # Without its rows, a run that ended keeps what was found when they were there.
        findings=alerts.stored(connection, row.run_id) if is_past else None,
    )


def _scaler(
    connection: Connection, run_id: UUID, scaler: Scaler, start: Start | None, *, is_first: bool
) -> ScalerCase:
    whole = updates.window(connection, scaler, Stretch(stop=scaler.stop), COLUMNS)
    gradients = _gradients(connection, scaler)
    numbers = [source.number for source in scaler.sources]
    skipped = skips.newest(connection, run_id, numbers, SKIPS, CULPRITS, start)
    lost = (each for each in events.resumes(connection, scaler) if each.lost is not None)
    first = int(whole["first"][0]) if len(whole) else 0
    recent = max(start_of(whole, RECENT), scaler.rows_from)
    return ScalerCase(
        name=scaler.name,
        policy=policy_of(connection, scaler),
        first=_one_by_one(connection, scaler, first, min(first + RECENT, scaler.stop) - 1),
        updates=whole,
        recent=read_cells(connection, scaler, recent, scaler.stop - 1)[-RECENT:],
        samples=_samples(connection, scaler, gradients, whole),
        parameters=_parameters(connection, scaler, gradients),
        skips=tuple(skipped),
        forgotten=tuple(each for each in lost if start is None or each.step <= start.origin),
        ranks=_ranks(connection, scaler, start),
        growth_tracker=_growth_tracker(connection, scaler, whole),
        logged=_logged(connection, scaler, start) if is_first else {},
    )


def _growth_tracker(connection: Connection, scaler: Scaler, whole: Cells) -> int | None:
    if not len(whole):
        return None
    rows = read_rows(connection, scaler, start=int(whole["last"][-1]))
    return int(rows["growth_tracker"][-1]) if len(rows) else None


def samples_of(
    connection: Connection, run_id: UUID, *, stream: int | None = None
) -> GradientSeries:
    """Return the newest samples of a scaler and those beside older changes of its scale. Raises NotFound."""
    scaler = find(connection, run_id, stream)
    if not scaler.sources:
        return empty_gradients()
    scaler = scaler.since(newest_start(connection, scaler.run_id))
    whole = updates.window(connection, scaler, Stretch(stop=scaler.stop), COLUMNS)
    return _samples(connection, scaler, _gradients(connection, scaler), whole)


def _gradients(connection: Connection, scaler: Scaler) -> Cells:
    return samples.window(connection, scaler, Stretch(stop=scaler.stop), COLUMNS // 2)


def start_of(cells: Cells, newest: int) -> int:
    """Return the step from which on a series has about ``newest`` rows, and at least that many where rows are dense."""
    if not len(cells):
        return 0
    left = np.cumsum(cells["n"][::-1])[::-1]
    at = max(int((left >= newest).sum()) - 1, 0)
    first, last, n = (int(cells[name][at]) for name in ("first", "last", "n"))
    wanted = newest - (int(left[at]) - n)
    return max(first, last + 1 - -(-wanted * (last - first + 1) // n))


def _one_by_one(connection: Connection, scaler: Scaler, first: int, last: int) -> Cells:
    """Updates as cells of one row each, or of 16 or more steps where their rows are pruned."""
    if first >= scaler.rows_from:
        return read_cells(connection, scaler, first, last)
    return updates.window(connection, scaler, Stretch(first, last + 1), RECENT)


def _ranks(connection: Connection, scaler: Scaler, start: Start | None) -> Mapping[int, Cells]:
    """Each rank's newest updates in the newest start, which may have fewer ranks than others."""
    number, ranks = (0, RANKS_MAX) if start is None else (start.number, start.ranks)
    sources = [source for source in scaler.sources if source.rank < ranks]
    if len(sources) < 2:
        return {}
    found = {}
    for source in compared(connection, scaler, sources):
        first = max(source.reach + 1 - RANK_UPDATES, source.rows_from)
        alone = replace(scaler, sources=(source,))
        rows = read_rows(connection, alone, start=first, stop=source.reach + 1)
        found[source.rank] = of_rows(rows[rows["attempt"] == number])
    return found


_POLICY = select(
    headers.c.scaler_type, headers.c.device, headers.c.layout, headers.c.settings
).where(of_attempt(headers))


def policy_of(connection: Connection, scaler: Scaler) -> ScalePolicy:
    """Return the scale policy that the newest attempt of a scaler reported."""
    first = min(scaler.sources, key=attrgetter("number"))
    wanted = {**first.bound, "attempt": first.newest_attempt}
    ((kind, device, layout, settings),) = fetch(connection, _POLICY, wanted)
    return ScalePolicy(
        scaler_type=kind, device=device, layout=layout, **_finite(decode_object(settings))
    )


def _finite(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The scaler settings that are finite. The others are stored as null with their kind beside them."""
    return {
        name: value
        for name, value in settings.items()
        if value is not None and not name.endswith("_kind")
    }


# -- gradients ---------------------------------------------------------------------------------------------------------


def _samples(
    connection: Connection, scaler: Scaler, gradients: Cells, whole: Cells
) -> GradientSeries:
    """The newest samples, and one on each side of older changes of the scale."""
    shards = max(len(scaler.sampled), 1)
    start = start_of(gradients, max(NEWEST // shards, 1))
    older = [step for step in reversed(_moves(whole)) if step < start][: MOVES // shards]
    beside = [_beside(connection, scaler, step, start) for step in older]
    newest = samples.read_series(connection, scaler, start=start, stop=scaler.stop)
    found = join_samples([*beside, newest])
    _, each = np.unique(found.step, return_index=True)
    return take(found, each)


def _moves(whole: Cells) -> list[int]:
    """Steps after which the scale changed, as far as the cells of the whole run record them."""
    steps = np.concatenate([whole["move_first"].ravel(), whole["move_last"].ravel()])
    found: list[int] = np.unique(steps[(steps >= 0) & (steps < NEVER)]).tolist()
    return found


def _beside(connection: Connection, scaler: Scaler, step: int, before: int) -> GradientSeries:
    """The last sample at or before ``step`` and the first after it, if within `BESIDE` steps and before ``before``."""
    stop = min(step + 1 + BESIDE, before)
    near = samples.read_series(connection, scaler, start=max(step - BESIDE, 0), stop=stop)
    at = int(np.searchsorted(near.step, step, side="right"))
    return take(near, np.arange(max(at - 1, 0), min(at + 1, len(near))))


def _parameters(connection: Connection, scaler: Scaler, gradients: Cells) -> ParameterCase:
    sizes = parameter_rollups.sizes(connection, (scaler.sampled or scaler.sources)[0])
    wanted = min(max(PARAMETER_VALUES // max(len(sizes.numel), 1), 8), PARAMETER_SAMPLES)
    start = start_of(gradients, wanted)
    names, cells = parameter_rollups.newest(connection, scaler, start, wanted)
    return ParameterCase(names=names, numel=sizes.of(names), cells=cells, sample=sizes.sample)


# -- what the user logged ----------------------------------------------------------------------------------------------


def _logged(connection: Connection, scaler: Scaler, start: Start | None) -> Mapping[str, Cells]:
    """Logged values of the lowest rank by name, names that contain "loss" first."""
    lowest = scaler.sources[0]
    names = _first(scalars.names_of(connection, lowest))
    # A start without a scaler only logs values, at steps that no update has.
    is_cut = start is not None and start.last.get(lowest.number, 0) is not None
    stretch = Stretch(stop=lowest.counts_to + 1) if is_cut else Stretch()
    all_of = {name: scalars.series(connection, lowest, name) for name in names}
    found = {name: series.window(stretch, COLUMNS // 4) for name, series in all_of.items()}
    return {name: cells for name, cells in found.items() if len(cells)}


def _first(names: Sequence[str]) -> list[str]:
    return sorted(names, key=lambda name: ("loss" not in name.lower(), name))[:NAMES]


def _config(connection: Connection, run_id: bytes) -> dict[str, Any]:
    table = attempts.c
    newest = (
        select(table.config)
        .where(table.run_id == run_id)
        .order_by(table.rank, table.attempt.desc())
        .limit(1)
    )
    stored = connection.scalar(newest)
    return {} if stored is None else decode_object(stored)


# -- replays -----------------------------------------------------------------------------------------------------------


def history(connection: Connection, run_id: UUID, *, stream: int | None = None) -> History:
    """Return the newest `UPDATES_MAX` updates of a scaler over all ranks. Raises NotFound, also if it has no update."""
    scaler = find(connection, run_id, stream)
    last = max(
        (each.last_step for each in scaler.sources if each.last_step is not None), default=-1
    )
    start = max(last + 1 - UPDATES_MAX, scaler.rows_from)
    rows = with_skips(connection, scaler, read_rows(connection, scaler, start=start))
    if not len(rows):
        raise NotFound(f"Run {run_id} has no update yet: there is nothing to replay.")
    ends = int(rows["step"][0]), int(rows["step"][-1])
    policy = policy_of(connection, scaler)
    return History.of(
        rows["step"],
        rows["scale"],
        rows["skipped"] > 0,
        np.isin(rows["step"], _nan(connection, scaler, ends)),
        policy=policy,
        samples=samples.read_series(connection, scaler, start=start),
        updates=max(each.updates for each in scaler.sources),
        tracker=_tracker_before(rows[0], policy.growth_interval),
    )


def _tracker_before(row: Any, interval: int) -> int:
    """The growth tracker before an update, from its row. A skip has erased it."""
    # After a growth the tracker is 0, and before it was one less than the interval.
    return 0 if row["skipped"] else int(row["growth_tracker"] - 1) % max(interval, 1)


def _nan(connection: Connection, scaler: Scaler, within: tuple[int, int]) -> list[int]:
    """The steps whose skip no scale prevents: the loss was not finite, or, if unknown, there was NaN without inf."""
    table = tables.skips.c
    statement = select(table.step).where(
        table.run_id == scaler.run_id,
        table.step.between(*within),
        table.stream.in_([each.number for each in scaler.sources]),
        (table.loss == LOST) | (table.loss.is_(None) & (table.cause == "nan")),
        skips.CURRENT,
    )
    return [step for (step,) in fetch(connection, statement)]
