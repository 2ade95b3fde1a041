"""Keeps what a run was found to have on its row, where the list of runs and the next acknowledgement find it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import orjson
from sqlalchemy import Column, Connection, Row, select, update

from ampmon import wire
from ampmon_server.alerting.targets import Alerts
from ampmon_server.store.alerts import alerts
from ampmon_server.store.engine.engine import now_us
from ampmon_server.store.schema.tables import runs
from ampmon_server.store.streams.changes import Change


KEPT = 32
"""So many findings of a run are kept, the worst."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a run was found to have at its ``version``, the worst first; the same may be found twice.

    Without a version it is of the run as it is when this is kept.
    """

    verdict: str
    severity: wire.Severity | None
    findings: Sequence[wire.Finding]
    version: int | None = None


_HELD: tuple[Column[Any], ...] = (
    runs.c.run_id,
    runs.c.version,
    runs.c.last_step,
    runs.c.findings,
    runs.c.firing,
    runs.c.alerts_due,
    runs.c.project,
    runs.c.name,
    runs.c.owner,
    runs.c.state,
    runs.c.archived,
    runs.c.last_time,
)


class Kept(NamedTuple):
    """Where a run stands, None where that is as it was; and when an alert of it may fire that does not yet."""

    change: Change | None = None
    due: int | None = None


def keep(
    connection: Connection, run_id: UUID, judgement: Judgement, to: Alerts | None = None
) -> Kept:
    """Keep it, where it is another than is kept and the run is there; and advance its alerts, if any are sent."""
    now = now_us()
    held = connection.execute(
        select(*_HELD).where(runs.c.run_id == run_id.bytes, runs.c.deleted == 0).with_for_update()
    ).one_or_none()
    if held is None:
        return Kept()
    findings = orjson.dumps([msgspec.structs.asdict(each) for each in judgement.findings[:KEPT]])
    advanced = alerts.Advanced(False, held.firing, None)
    if to is not None:
        advanced = alerts.advance(connection, held, judgement.findings, now, to)
    values: dict[str, Any] = {"alerts_due": _due(held, judgement, advanced.due)}
    stands = (held.findings, held.firing) == (findings.decode(), advanced.firing)
    change = None
    if advanced.changed or not stands:
        change = run_id, held.version + 1, held.last_step
        values |= {
            "verdict": judgement.verdict,
            "severity": judgement.severity,
            "findings": findings.decode(),
            "firing": advanced.firing,
            "version": held.version + 1,
            "changed": now,
        }
    if change is not None or values["alerts_due"] != held.alerts_due:
        connection.execute(update(runs).where(runs.c.run_id == run_id.bytes).values(values))
    return Kept(change, advanced.due)


def _due(held: Row[Any], judgement: Judgement, due: int | None) -> int | None:
    """When to look again: what was due stays so where the run has moved on since it was looked at."""
    if judgement.version in {None, held.version}:
        return due
    return min((each for each in (due, held.alerts_due) if each is not None), default=None)


def listed(findings: str | None) -> tuple[dict[str, Any], ...] | None:
    """The findings that are kept, in plain data; None where nobody has looked."""
    return None if findings is None else tuple(orjson.loads(findings))
