"""Stores the findings of a run on its row, where the list of runs and the next ingest acknowledgement read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import orjson
from sqlalchemy import Connection, select, update

from ampmon import wire
from ampmon_server.alerting.targets import Alerts
from ampmon_server.store.alerts import alerts
from ampmon_server.store.engine.engine import now_us
from ampmon_server.store.schema.tables import runs
from ampmon_server.store.streams.state import Advance


KEPT = 32
"""The most findings stored for a run: the worst ones."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict and findings of a run at its ``version``, worst first. A finding may occur twice.

    ``attempts`` is how often the run had been started. Without it and a version, the judgement is about the run as it
    is when the judgement is stored.
    """

    verdict: str
    severity: wire.Severity | None
    findings: Sequence[wire.Finding]
    version: int | None = None
    attempts: int | None = None


class Kept(NamedTuple):
    """The new version of a run, None if nothing changed, and when its next pending alert may fire."""

    change: Advance | None = None
    due: int | None = None


def keep(
    connection: Connection, run_id: UUID, judgement: Judgement, to: Alerts | None = None
) -> Kept:
    """Store a judgement if it differs from the stored one and the run exists.

    Also advance the run's alerts, if ``to`` says how alerts are sent. If another server has judged a newer version of
    the run meanwhile, or the run was started again, nothing changes: the findings may tell the new start to stop.
    """
    now = now_us()
    held = connection.execute(
        select(runs).where(runs.c.run_id == run_id.bytes, runs.c.deleted == 0).with_for_update()
    ).one_or_none()
    if held is None or judgement.attempts not in {None, held.attempts}:
        return Kept()
    judged = held.version if judgement.version is None else judgement.version
    if judged < held.judged:
        return Kept()
    findings = orjson.dumps([msgspec.structs.asdict(each) for each in judgement.findings[:KEPT]])
    advanced = alerts.Advanced(False, held.firing, None)
    if to is not None:
        advanced = alerts.advance(connection, held, judgement.findings, now, to)
    # If the run changed since it was read, an earlier stored time stays.
    due = (
        advanced.due if judged == held.version else alerts.earliest([advanced.due, held.alerts_due])
    )
    values: dict[str, Any] = {"alerts_due": due, "judged": judged}
    stands = (held.findings, held.firing) == (findings.decode(), advanced.firing)
    change = None
    if advanced.changed or not stands:
        change = Advance(run_id, held.version + 1, held.last_step)
        values |= {
            "verdict": judgement.verdict,
            "severity": judgement.severity,
            "findings": findings.decode(),
            "firing": advanced.firing,
            "version": held.version + 1,
            "changed": now,
        }
    if change is not None or (due, judged) != (held.alerts_due, held.judged):
        connection.execute(update(runs).where(runs.c.run_id == run_id.bytes).values(values))
    return Kept(change, advanced.due)


def stored(connection: Connection, run_id: bytes) -> tuple[wire.Finding, ...] | None:
    """Return the stored findings of a run, worst first. None if it is not judged yet, or is to be judged again.

    An archived run that is due has alerts to end, and nothing new to judge.
    """
    findings, due, archived = connection.execute(
        select(runs.c.findings, runs.c.alerts_due, runs.c.archived).where(runs.c.run_id == run_id)
    ).one()
    if findings is None or (due is not None and not archived):
        return None
    return msgspec.convert(orjson.loads(findings), tuple[wire.Finding, ...])


def listed(findings: str | None) -> tuple[dict[str, Any], ...] | None:
    """Decode stored findings to plain data; None if the run was never judged."""
    return None if findings is None else tuple(orjson.loads(findings))
