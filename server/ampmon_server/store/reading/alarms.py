"""Implements the store's calls for judging runs, and for alerts, their messages and mutes."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from uuid import UUID

from sqlalchemy import Connection

from ampmon_server.alerting.machine import Alert
from ampmon_server.alerting.messages import Found, Subject
from ampmon_server.store.alerts import alerts, mutes, outbox
from ampmon_server.store.alerts.alerts import DueRun
from ampmon_server.store.alerts.mutes import Mute
from ampmon_server.store.alerts.outbox import DeliveryState
from ampmon_server.store.engine.engine import Calls, now_us, reads, writes
from ampmon_server.store.engine.errors import NotFound
from ampmon_server.store.runs import cases, runs
from ampmon_server.store.streams.state import Advance, move_on


@dataclass(frozen=True, slots=True)
class RunAlerts:
    """Alerts of a run by rule, the delivery of their messages, and the mutes that apply now, newest first."""

    alerts: dict[str, tuple[Alert, Found]]
    deliveries: list[DeliveryState]
    mutes: list[Mute]


def of_run(connection: Connection, run_id: UUID) -> RunAlerts:
    """Return the alerts of a run. Raises NotFound."""
    project = runs.subject(connection, run_id).project
    return RunAlerts(
        alerts.read(connection, run_id.bytes),
        outbox.of_runs(connection, [run_id.bytes]).get(run_id.bytes, []),
        mutes.of_run(connection, run_id.bytes, project, now_us()),
    )


def open_alerts(
    connection: Connection, limit: int, within: Collection[str] | None = None
) -> list[tuple[Subject, RunAlerts]]:
    """Return pending and firing alerts of all runs, newest first, one entry per alert with its run."""
    now = now_us()
    found = alerts.open_ones(connection, limit, within)
    ids = {UUID(subject.run_id).bytes for subject, *_ in found}
    deliveries = outbox.of_runs(connection, ids)
    kept = mutes.read_all(connection, within)
    listed = []
    for subject, rule, alert, of in found:
        run_id = UUID(subject.run_id)
        holding = [mute for mute in kept if mute.holds(run_id, subject.project, now)]
        stand = RunAlerts({rule: (alert, of)}, deliveries.get(run_id.bytes, []), holding)
        listed.append((subject, stand))
    return listed


def runs_to_judge(connection: Connection, *, alerting: bool = True) -> list[DueRun]:
    """Return runs to judge although no records arrive.

    With ``alerting``, also those with an alert whose state was not sent and that is not muted.
    """
    found = alerts.runs_to_judge(connection, now_us())
    return found + alerts.runs_with_unsent_alerts(connection, now_us()) if alerting else found


def list_mutes(
    connection: Connection, within: Collection[str] | None = None
) -> list[tuple[Mute, Subject | None]]:
    """Return the mutes that apply to ``within``, or all, newest first, each with its run if it is for one."""
    kept = mutes.read_all(connection, within)
    of = alerts.subjects(connection, [mute.run_id for mute in kept if mute.run_id])
    return [(mute, of.get(mute.run_id) if mute.run_id else None) for mute in kept]


def mute(connection: Connection, wanted: Mute, who: str) -> tuple[Mute, Advance | None]:
    """Store a mute. Return it as stored, and the change of its run if it is for one. Raises NotFound."""
    made = replace(wanted, made=now_us(), made_by=who)
    if made.run_id is None:
        return mutes.keep(connection, made), None
    moved = move_on(connection, made.run_id, made.made)
    project = runs.subject(connection, made.run_id).project
    return mutes.keep(connection, replace(made, project=project)), moved


def lift(connection: Connection, mute: Mute) -> Advance | None:
    """Delete a mute, and return the change of its run if it is for one that exists."""
    moved = None
    if mute.run_id is not None:
        with suppress(NotFound):
            moved = move_on(connection, mute.run_id, now_us())
    mutes.lift(connection, mute.mute_id)
    return moved


def tidy(connection: Connection, targets: Collection[str]) -> None:
    """Delete old messages and mutes, and give up messages to targets that are not in ``targets``."""
    outbox.tidy(connection, targets, now_us())
    mutes.tidy(connection, now_us())


class AlertCalls(Calls):
    """Calls for judgements and alerts. Each call is one transaction. Times are us since the epoch."""

    case = reads(cases.read)
    keep = writes(alerts.keep)
    runs_to_judge = reads(runs_to_judge)
    firing = reads(alerts.firing)
    acknowledge = writes(alerts.acknowledge)
    alerts = reads(of_run)
    open_alerts = reads(open_alerts)
    find_mute = reads(mutes.find)
    messages_due = reads(outbox.due)
    take = writes(outbox.take)
    settle = writes(outbox.settle)
    messages = reads(outbox.listed)
    target_states = reads(outbox.target_states)
    tidy_messages = writes(tidy)
    mute = writes(mute)
    lift = writes(lift)
    mutes = reads(list_mutes)
