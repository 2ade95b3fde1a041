"""Stores the findings of a run, and in the same transaction its alerts. So an alert is stored before it is sent.

Findings lie on the run's row, where the list of runs and the next ingest acknowledgement read them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import msgspec
import orjson
from sqlalchemy import Connection, Row, and_, delete, func, or_, select, update

from ampmon import wire
from ampmon_server.alerting.machine import Alert, step
from ampmon_server.alerting.messages import Found, Subject, message
from ampmon_server.alerting.targets import Alerts
from ampmon_server.store.alerts import mutes, outbox
from ampmon_server.store.alerts.outbox import subject_of
from ampmon_server.store.engine.engine import now_us
from ampmon_server.store.engine.errors import NotFound
from ampmon_server.store.engine.rows import insert_rows
from ampmon_server.store.schema.tables import alerts, runs
from ampmon_server.store.streams.state import Advance, RunState, find, lock, move_on


OF_THE_END = frozenset({"crashed"})
"""Rules about how a run ended. Alerts of all other rules end with the run."""

RECENT_US = 24 * 3600 * 1_000_000
"""No alert begins for a run whose last record is older: its records came late, or it was abandoned long ago."""

LOOK_BACK_US = 2 * RECENT_US
"""`runs_to_judge` searches only runs that changed within this time. No pending alert waits longer."""

_COLUMNS = tuple(field.name for field in fields(Alert))

Alerted: TypeAlias = dict[str, tuple[Alert, Found]]
"""The alerts of a run by rule, each with the last finding."""


class Advanced(NamedTuple):
    """Whether any alert changed, how many fire unacknowledged, and when the next pending alert may fire."""

    changed: bool
    firing: int
    due: int | None


def advance(
    connection: Connection, run: RunState, findings: Sequence[wire.Finding], now: int, to: Alerts
) -> Advanced:
    """Move every alert of a run to its next state and queue the messages that are due.

    The transaction must hold the lock on the run's row.
    """
    before = read(connection, run.run_id)
    there = _worth_an_alert(run, findings, now, to, before)
    if not before and not there:
        return Advanced(False, 0, None)
    muted = {mute.rule for mute in mutes.of_run(connection, run.run_id, run.project, now)}
    subject = subject_of(run.run_id, run)
    after: Alerted = {}
    dues = []
    for rule in dict.fromkeys((*before, *there)):
        stood, found = before.get(rule, (None, None))
        finding = there.get(rule)
        severity = None if finding is None else finding.severity
        hushed = rule in muted or None in muted  # None is all rules
        made = step(stood, severity, now, to.policy, muted=hushed)
        found = found if finding is None else Found.of(finding)
        if made.alert is None or found is None:
            continue
        alert = made.alert
        dues.append(made.due)
        if made.event is not None:
            notice = message(subject, found, alert, made.event, to.public_url)
            targets = to.wanting(run.project, alert.severity)
            outbox.put(connection, run, rule, notice, targets, now)
        elif alert != stood and alert.over_unheard:
            # Messages that say that it fires are outdated. If it returns, they are to be sent after all.
            withdrawn = outbox.withdraw(connection, run.run_id, rule)
            alert = alert.unheard() if withdrawn else alert
        after[rule] = alert, found
    _write(connection, run.run_id, before, after)
    changed = {rule: kept[0] for rule, kept in before.items()} != {
        rule: kept[0] for rule, kept in after.items()
    }
    return Advanced(changed, _firing(each for each, _ in after.values()), earliest(dues))


def earliest(times: Iterable[int | None]) -> int | None:
    """The earliest of some times, of which None is never."""
    return min((each for each in times if each is not None), default=None)


def _worth_an_alert(
    run: RunState, findings: Sequence[wire.Finding], now: int, to: Alerts, before: Alerted
) -> dict[str, wire.Finding]:
    """The worst finding of each rule that needs an alert."""
    over = run.state != "running"
    recent = run.last_time is not None and now - run.last_time < RECENT_US
    there: dict[str, wire.Finding] = {}
    for finding in findings:
        known = before.get(finding.rule)
        stands = known is not None and known[0].state != "resolved"
        if run.archived or (over and finding.rule not in OF_THE_END) or not (recent or stands):
            continue
        if stands or to.wanting(run.project, finding.severity):
            # Findings come with the worst first.
            there.setdefault(finding.rule, finding)
    return there


def read(connection: Connection, run_id: bytes) -> Alerted:
    """Return the alerts of a run, oldest first."""
    rows = connection.execute(
        select(alerts).where(alerts.c.run_id == run_id).order_by(alerts.c.since, alerts.c.rule)
    )
    return {row.rule: _alert(row) for row in rows}


def _alert(row: Row[Any]) -> tuple[Alert, Found]:
    alert = Alert(**{name: getattr(row, name) for name in _COLUMNS})
    return alert, msgspec.json.decode(row.found, type=Found)


def _write(connection: Connection, run_id: bytes, before: Alerted, after: Alerted) -> None:
    gone = [rule for rule in before if rule not in after]
    if gone:
        connection.execute(delete(alerts).where(alerts.c.run_id == run_id, alerts.c.rule.in_(gone)))
    rows = [
        (
            run_id,
            rule,
            *(getattr(alert, name) for name in _COLUMNS),
            msgspec.json.encode(found).decode(),
        )
        for rule, (alert, found) in after.items()
        if before.get(rule) != (alert, found)
    ]
    insert_rows(connection, alerts, rows, replace=True)


def _firing(stand: Iterable[Alert]) -> int:
    return sum(each.state == "firing" and each.acknowledged is None for each in stand)


def acknowledge(connection: Connection, run_id: UUID, rule: str, who: str) -> Advance:
    """Record who acknowledged an alert. Raises NotFound if no alert of the rule is pending or firing."""
    now = now_us()
    find(connection, run_id, runs.c.run_id, held=True)
    stand = read(connection, run_id.bytes)
    kept = stand.get(rule)
    if kept is None or kept[0].state == "resolved":
        raise NotFound(f"The rule {rule} has no open alert.")
    after = {**stand, rule: (replace(kept[0], acknowledged=now, acknowledged_by=who), kept[1])}
    _write(connection, run_id.bytes, stand, after)
    firing = _firing(each for each, _ in after.values())
    return move_on(connection, run_id, now, firing=firing)


def firing(connection: Connection) -> int:
    """Count the firing alerts of all runs that nobody has acknowledged."""
    counted = select(func.sum(runs.c.firing)).where(runs.c.firing > 0)
    return int(connection.scalar(counted) or 0)


def open_ones(
    connection: Connection, limit: int, within: Collection[str] | None
) -> list[tuple[Subject, str, Alert, Found]]:
    """Return pending and firing alerts, newest first, each with its run, its rule and the last finding.

    ``within`` limits them to some projects; None is all.
    """
    of = [] if within is None else [runs.c.project.in_(within)]
    rows = connection.execute(
        select(alerts, runs.c.project, runs.c.name, runs.c.owner)
        .join(runs, runs.c.run_id == alerts.c.run_id)
        .where(alerts.c.state != "resolved", runs.c.deleted == 0, *of)
        .order_by(alerts.c.since.desc(), alerts.c.run_id, alerts.c.rule)
        .limit(limit)
    )
    return [(subject_of(row.run_id, row), row.rule, *_alert(row)) for row in rows]


def subjects(connection: Connection, run_ids: Iterable[UUID]) -> dict[UUID, Subject]:
    """Return the subjects of those runs that exist."""
    ids = [run_id.bytes for run_id in run_ids]
    rows = connection.execute(
        select(runs.c.run_id, runs.c.project, runs.c.name, runs.c.owner).where(
            runs.c.run_id.in_(ids), runs.c.deleted == 0
        )
    )
    return {UUID(bytes=row.run_id): subject_of(row.run_id, row) for row in rows}


class DueRun(NamedTuple):
    """A run to judge although no records arrive: when it falls silent, and whether judging it is due now."""

    run_id: UUID
    silent_after: int
    due: bool


def runs_to_judge(connection: Connection, now: int) -> list[DueRun]:
    """Return runs that fell silent, have a due pending alert, or ended or were archived since their last judgement."""
    table = runs.c
    silent = and_(table.state == "running", table.silent_after < now)
    rows = connection.execute(
        select(table.run_id, table.silent_after, table.alerts_due).where(
            table.changed > now - LOOK_BACK_US,
            table.deleted == 0,
            or_(silent, table.alerts_due <= now),
        )
    )
    return [
        DueRun(
            UUID(bytes=row.run_id),
            row.silent_after,
            row.alerts_due is not None and row.alerts_due <= now,
        )
        for row in rows
    ]


def runs_with_unsent_alerts(connection: Connection, now: int) -> list[DueRun]:
    """Return runs with an alert that is not muted now and whose current state, firing or over, was not sent.

    It does not matter whether a mute expired or was deleted.
    """
    table = alerts.c
    rows = connection.execute(
        select(runs.c.run_id, runs.c.silent_after)
        .distinct()
        .join(alerts, table.run_id == runs.c.run_id)
        .where(
            or_(
                and_(table.state == "firing", or_(table.told.is_(None), table.told < table.fired)),
                and_(table.state == "resolved", table.told.is_not(None)),
            ),
            runs.c.deleted == 0,
            ~mutes.muted(table.run_id, runs.c.project, table.rule, now),
        )
    )
    return [DueRun(UUID(bytes=row.run_id), row.silent_after, True) for row in rows]


# -- findings ----------------------------------------------------------------------------------------------------------


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
    held = lock(connection, run_id)
    if held is None or held.deleted or judgement.attempts not in {None, held.attempts}:
        return Kept()
    judged = held.version if judgement.version is None else judgement.version
    # A version beyond the run's is of commits that a failover lost.
    if not held.judged <= judged <= held.version:
        return Kept()
    findings = orjson.dumps([msgspec.structs.asdict(each) for each in judgement.findings[:KEPT]])
    advanced = Advanced(False, held.firing, None)
    if to is not None:
        advanced = advance(connection, held, judgement.findings, now, to)
    # If the run changed since it was read, an earlier stored time stays.
    due = advanced.due if judged == held.version else earliest([advanced.due, held.alerts_due])
    values: dict[str, Any] = {"alerts_due": due, "judged": judged}
    stands = (held.findings, held.firing) == (findings.decode(), advanced.firing)
    change = None
    if advanced.changed or not stands:
        values |= {
            "verdict": judgement.verdict,
            "severity": judgement.severity,
            "findings": findings.decode(),
            "firing": advanced.firing,
        }
        change = move_on(connection, run_id, now, **values)
    elif (due, judged) != (held.alerts_due, held.judged):
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
