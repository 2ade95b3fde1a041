"""Reads the process starts of a run, and what each scaler reported about itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy import Connection, Row, select

from ampmon_server.store.schema.tables import attempts, headers


@dataclass(frozen=True, slots=True)
class Identity:
    """The process starts of a run, what each scaler reported about itself, and the newest configuration."""

    attempts: list[dict[str, Any]]
    scalers: list[dict[str, Any]]
    config: dict[str, Any]


def read(connection: Connection, run_id: UUID) -> Identity:
    header = headers.c
    starts = connection.execute(
        select(attempts)
        .where(attempts.c.run_id == run_id.bytes)
        .order_by(attempts.c.rank, attempts.c.attempt)
    ).all()
    scalers = connection.execute(
        select(
            header.stream,
            header.attempt,
            header.scaler_type,
            header.device,
            header.enabled,
            header.sample,
            header.settings,
            header.parameter_count,
        )
        .where(header.run_id == run_id.bytes)
        .order_by(header.stream, header.attempt)
    ).all()
    lowest = [start for start in starts if start.rank == starts[0].rank]
    return Identity(
        [_start(start) for start in starts],
        [
            {
                "stream": str(row.stream),
                "attempt": row.attempt,
                "type": row.scaler_type,
                "device": row.device,
                "enabled": bool(row.enabled),
                "sample": row.sample,
                "parameters": row.parameter_count,
                **orjson.loads(row.settings),
            }
            for row in scalers
        ],
        orjson.loads(lowest[-1].config) if lowest else {},
    )


def _start(row: Row[Any]) -> dict[str, Any]:
    return {
        "rank": row.rank,
        "attempt": row.attempt,
        "attempt_id": str(UUID(bytes=row.attempt_id)),
        "started": row.started,
        "origin": row.origin,
        "origin_assumed": bool(row.origin_assumed),
        "ended": row.ended,
        "ended_time": row.ended_time,
        "host": row.host,
        "pid": row.pid,
        "boot_id": row.boot_id,
        "world_size": row.world_size,
        "git_commit": row.git_commit,
        "versions": orjson.loads(row.versions),
        "rival": bool(row.rival),
    }
