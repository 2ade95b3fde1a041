"""Keeps what a run was found to have on its row, where the list of runs and the next acknowledgement find it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
import orjson
from sqlalchemy import Connection, select, update

from ampmon import wire
from ampmon_server.store.changes import Change
from ampmon_server.tables import runs


KEPT = 32
"""So many findings of a run are kept, the worst."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a run was found to have, the worst first; the same run may be found to have the same twice."""

    verdict: str
    severity: wire.Severity | None
    findings: Sequence[wire.Finding]


def keep(connection: Connection, run_id: UUID, judgement: Judgement, now: int) -> Change | None:
    """Keep it, if it is another than is kept; where the run stands then. None where nothing changed, or it is gone."""
    table = runs.c
    held = connection.execute(
        select(table.version, table.last_step, table.findings)
        .where(table.run_id == run_id.bytes, table.deleted == 0)
        .with_for_update()
    ).one_or_none()
    told = orjson.dumps([msgspec.structs.asdict(each) for each in judgement.findings[:KEPT]])
    if held is None or held.findings == told.decode():
        return None
    connection.execute(
        update(runs)
        .where(table.run_id == run_id.bytes)
        .values(
            verdict=judgement.verdict,
            severity=judgement.severity,
            findings=told.decode(),
            version=held.version + 1,
            changed=now,
        )
    )
    return run_id, held.version + 1, held.last_step


def listed(findings: str | None) -> tuple[dict[str, Any], ...] | None:
    """The findings that are kept, in plain data; None where nobody has looked."""
    return None if findings is None else tuple(orjson.loads(findings))
