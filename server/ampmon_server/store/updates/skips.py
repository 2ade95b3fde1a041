"""Reads the skip ledger: one row for each optimizer that skipped an update, with the culprit parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, Select, false, func, or_, select, tuple_

from ampmon import wire
from ampmon_server.model.case import Skip, SkipCulprit
from ampmon_server.store.engine.numbers import KINDS, kinds_of_pair
from ampmon_server.store.engine.rows import Paged, newest_rows
from ampmon_server.store.schema.tables import headers, ledger, skips, streams
from ampmon_server.store.streams import scalers
from ampmon_server.store.streams.attempts import Start
from ampmon_server.store.streams.scalers import unpack_modules, unpack_parameters


@dataclass(frozen=True, slots=True)
class Landmark:
    """The step and time of a skip. Times are microseconds since the epoch, by the training machine's clock."""

    step: int
    time: int


_culprits_decoder = msgspec.json.Decoder(list[tuple[int, int | None, int | None]])
_KEY = (skips.c.step, skips.c.stream, skips.c.attempt, skips.c.optimizer)

CURRENT = ~(
    select(ledger.c.attempt)
    .where(
        ledger.c.run_id == skips.c.run_id,
        ledger.c.stream == skips.c.stream,
        ledger.c.attempt > skips.c.attempt,
        skips.c.step.between(ledger.c.first_step, ledger.c.last_step),
    )
    .exists()
)
"""The condition that no later attempt of the same stream has repeated the step of a skip."""


def read(
    connection: Connection,
    run_id: UUID,
    *,
    stream: int | None = None,
    limit: int = 100,
    cursor: str | None = None,
    parameter: str | None = None,
) -> Paged[Skip]:
    """Skips that no later attempt supersedes, newest first.

    With a ``parameter``, only skips that have it as a culprit. Raises NotFound, BadQuery.
    """
    scalers.find(connection, run_id, stream)
    statement = _of(run_id)
    if parameter is not None:
        statement = statement.where(_blames(connection, run_id, parameter))
    if stream is not None:
        statement = statement.where(skips.c.stream == stream)
    rows, following = newest_rows(connection, statement, _KEY, limit=limit, cursor=cursor)
    return Paged(_skips(connection, run_id, rows, None), following)


def nearest(
    connection: Connection,
    run_id: UUID,
    step: int | None,
    *,
    after: bool,
    stream: int | None = None,
    time: int | None = None,
) -> Landmark | None:
    """The scaler's skip nearest to ``step`` or the skips at ``time``, after or before. Without either, an end's.

    Raises NotFound.
    """
    scaler = scalers.find(connection, run_id, stream)
    table = skips.c
    statement = select(table.step, table.time).where(
        table.run_id == scaler.run_id,
        table.stream.in_([source.number for source in scaler.sources]),
        CURRENT,
    )
    if time is not None:
        # The ranks of a step have times of their own.
        reached = table.time <= time if after else table.time >= time
        edge = func.max(table.step) if after else func.min(table.step)
        step = connection.execute(statement.with_only_columns(edge).where(reached)).scalar_one()
    if step is not None:
        statement = statement.where(table.step > step if after else table.step < step)
    order = table.step if after else table.step.desc()
    row = connection.execute(statement.order_by(order).limit(1)).one_or_none()
    return None if row is None else Landmark(row.step, row.time)


def newest(
    connection: Connection,
    run_id: UUID,
    streams_of: Sequence[int],
    limit: int,
    culprits: int,
    start: Start | None,
) -> list[Skip]:
    """The newest ``limit`` skips of some streams that ``start`` has not undone, each with its first ``culprits``."""
    statement = _of(run_id).where(skips.c.stream.in_(streams_of))
    if start is not None:
        table = skips.c
        statement = statement.where(or_(table.step < start.origin, table.attempt == start.number))
    rows, _ = newest_rows(connection, statement, _KEY, limit=limit, cursor=None)
    return _skips(connection, run_id, rows, culprits)


def _blames(connection: Connection, run_id: UUID, parameter: str) -> ColumnElement[bool]:
    """The condition that a skip has a parameter as a culprit. Each header has its own index for the parameter."""
    table = headers.c
    declared = connection.execute(
        select(table.stream, table.attempt, table.parameters).where(table.run_id == run_id.bytes)
    )
    at: dict[int, list[tuple[int, int]]] = {}
    for stream, attempt, parameters in declared:
        for index, each in enumerate(unpack_parameters(parameters)):
            if each.name == parameter:
                at.setdefault(index, []).append((stream, attempt))
    of = tuple_(skips.c.stream, skips.c.attempt)
    # Each culprit is [index, inf, NaN], so an index follows its bracket.
    named = [of.in_(where) & skips.c.culprits.contains(f"[{index},") for index, where in at.items()]
    return or_(false(), *named)


def _of(run_id: UUID) -> Select[Any]:
    table = skips.c
    return (
        select(skips, streams.c.rank, streams.c.scaler)
        .join(streams, (streams.c.run_id == table.run_id) & (streams.c.stream == table.stream))
        .where(table.run_id == run_id.bytes, CURRENT)
    )


def _skips(
    connection: Connection, run_id: UUID, rows: Sequence[Row[Any]], culprits: int | None
) -> list[Skip]:
    declared = _headers(connection, run_id, rows)
    return [_skip(row, *declared[row.stream, row.attempt], culprits) for row in rows]


def _headers(
    connection: Connection, run_id: UUID, rows: Sequence[Row[Any]]
) -> dict[tuple[int, int], tuple[Sequence[wire.Parameter], Sequence[wire.Module]]]:
    """The parameters and modules that the indices in these rows refer to, by stream and attempt."""
    table = headers.c
    wanted = {(row.stream, row.attempt) for row in rows}
    declared = connection.execute(
        select(table.stream, table.attempt, table.parameters, table.modules).where(
            table.run_id == run_id.bytes, tuple_(table.stream, table.attempt).in_(wanted)
        )
    )
    return {
        (stream, attempt): (unpack_parameters(parameters), unpack_modules(modules))
        for stream, attempt, parameters, modules in declared
    }


def _skip(
    row: Row[Any],
    parameters: Sequence[wire.Parameter],
    modules: Sequence[wire.Module],
    culprits: int | None,
) -> Skip:
    scale_kind, after_kind = kinds_of_pair(row.kinds)
    return Skip(
        step=row.step,
        time=row.time,
        stream=str(row.stream),
        rank=row.rank,
        scaler=row.scaler,
        attempt=row.attempt,
        optimizer=row.name,
        path=row.path,
        cause=row.cause,
        scale=row.scale,
        scale_kind=KINDS[scale_kind],
        scale_after=row.scale_after,
        scale_after_kind=KINDS[after_kind],
        culprits=[
            SkipCulprit(parameters[index].name, inf, nan)
            for index, inf, nan in _culprits_decoder.decode(row.culprits)[:culprits]
        ],
        culprit_order=row.culprit_order,
        culprit_parameters=row.culprit_parameters,
        origin=row.origin,
        origin_module=None if row.origin_module is None else modules[row.origin_module].name,
        loss=row.loss,
    )
