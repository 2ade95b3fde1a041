"""Queues messages to targets until they are sent or outdated. One server process at a time leases each message."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)

from ampmon_server.alerting.deliver import DEADLINE_S
from ampmon_server.alerting.messages import DeliveryOutcome, Message, Subject, Trouble, together
from ampmon_server.alerting.targets import Target
from ampmon_server.store.alerts import mutes
from ampmon_server.store.engine.engine import now_us
from ampmon_server.store.engine.errors import NotFound
from ampmon_server.store.schema.global_tables import messages
from ampmon_server.store.schema.tables import runs
from ampmon_server.store.streams.state import Advance, RunState, move_on


_S = 1_000_000
HOUR_US = 3600 * _S
LEASE_US = (2 * DEADLINE_S + 30) * _S
"""How long a process may hold a message before it must settle it. Then any process may take the message again."""
RETRY_US, RETRY_MAX_US = 30 * _S, HOUR_US
"""Wait after the first failed delivery, doubled after each further one, and its maximum."""
GIVE_UP_US = 24 * HOUR_US
KEPT_US = 7 * 24 * HOUR_US
TOGETHER_MAX = 1000
"""The most held-back messages that are combined into one."""


@dataclass(frozen=True, slots=True)
class LeasedMessages:
    """Queued messages to one target that a process has leased, combined into the one ``message`` to send."""

    ids: tuple[bytes, ...]
    message: Message


class DeliveryState(NamedTuple):
    """The delivery of an alert's newest message to a target. Times are us since the epoch.

    ``trouble`` is why the last attempt failed, ``due`` when the next attempt is, None for never.
    """

    rule: str
    target: str
    made: int
    attempts: int
    due: int | None
    sent: int | None
    trouble: Trouble | None
    status: int | None


def put(
    connection: Connection,
    run: RunState,
    rule: str,
    message: Message,
    targets: Iterable[Target],
    now: int,
) -> None:
    """Queue a message about a run to targets. It replaces earlier messages of the same alert that were not sent yet."""
    table, names = messages.c, [target.name for target in targets]
    if not names:
        return
    same = (table.of_run == run.run_id, table.rule == rule, table.target.in_(names))
    # A message that was tried and is due soon may be under way. Wait for it: see `take` and `settle`.
    idle = or_(table.attempts == 0, table.due.is_(None), table.due > now + 2 * LEASE_US)
    connection.execute(delete(messages).where(*same, table.sent.is_(None), idle))
    # This one comes after the last one, also if the clock was ahead then, or is in another server.
    last = select(table.target, func.max(table.made), func.max(table.due)).where(*same)
    before = connection.execute(last.group_by(table.target))
    lasts = {name: (made, due or 0) for name, made, due in before}
    rows = [
        {
            "message_id": uuid4().bytes,
            "target": name,
            "project": run.project,
            "of_run": run.run_id,
            "rule": rule,
            "made": max(now, made + 1),
            "due": max(now, due),
            **message._asdict(),
        }
        for name in names
        for made, due in [lasts.get(name, (0, 0))]
    ]
    connection.execute(insert(messages), rows)


def withdraw(connection: Connection, run_id: bytes, rule: str) -> bool:
    """Cancel the waiting messages of an alert, and return whether there were any."""
    table = messages.c
    waiting = (table.of_run == run_id, table.rule == rule, table.due.is_not(None))
    # A message that was tried may be under way: keep its row for `settle`, which will not retry it.
    tried = update(messages).where(*waiting, table.attempts > 0).values(due=None)
    cancelled = connection.execute(tried).rowcount
    return cancelled + connection.execute(delete(messages).where(*waiting)).rowcount > 0


def _drop_overtaken(connection: Connection, *which: ColumnElement[bool]) -> None:
    """Delete unsent messages that have a newer one: they would arrive after it with an older state."""
    old, new = messages.c, messages.alias().c
    after = (new.of_run == old.of_run, new.rule == old.rule, new.target == old.target)
    overtaken = exists().where(*after, new.made > old.made)
    connection.execute(delete(messages).where(old.sent.is_(None), overtaken, *which))


def due(connection: Connection) -> set[str]:
    """Return the targets that have messages due now, other than muted ones."""
    now = now_us()
    targets = select(messages.c.target).where(messages.c.due <= now, ~_muted(now)).distinct()
    return set(connection.scalars(targets))


def _muted(now: int) -> ColumnElement[bool]:
    table = messages.c
    return mutes.muted(table.of_run, table.project, table.rule, now)


def take(
    connection: Connection, target: str, hourly: int, public_url: str | None
) -> LeasedMessages | None:
    """Lease the next message to a target for `LEASE_US`, so that no other process sends it.

    Return None if nothing is due that is not muted, or if ``hourly`` messages were sent within the last hour.
    """
    now = now_us()
    to_send = (messages.c.target == target, messages.c.due <= now, ~_muted(now))
    _drop_overtaken(connection, *to_send)
    # A second server waits for the lock here. PostgreSQL then finds that the row is not due.
    rows = connection.execute(
        select(messages)
        .where(*to_send)
        .order_by(messages.c.made, messages.c.message_id)
        .limit(TOGETHER_MAX)
        .with_for_update()
    ).all()
    if not rows:
        return None
    free = _free_at(connection, target, now, hourly)
    if free > now:
        _change(connection, rows, due=free, held=1)
        return None
    held = [row for row in rows if row.held]
    chosen = held if len(held) > 1 else rows[:1]
    _change(connection, chosen, due=now + LEASE_US, attempts=messages.c.attempts + 1)
    message = Message(chosen[0].title, chosen[0].body, chosen[0].kind)
    if len(chosen) > 1:
        message = together([row.title for row in chosen], hourly, public_url)
    return LeasedMessages(tuple(row.message_id for row in chosen), message)


def _free_at(connection: Connection, target: str, now: int, hourly: int) -> int:
    """When the next message may be sent to a target: at most ``hourly`` within an hour."""
    times = connection.scalars(
        select(messages.c.sent)
        # After the next hour, it was sent before the clock was set back: messages would wait until it is there again.
        .where(messages.c.target == target, messages.c.sent.between(now - HOUR_US, now + HOUR_US))
        .distinct()
        .order_by(messages.c.sent.desc())
        .limit(hourly)
    ).all()  # messages sent as one have the same time
    return now if len(times) < hourly else int(times[-1] or 0) + HOUR_US


def _change(connection: Connection, rows: Sequence[Row[Any]], **values: Any) -> None:
    ids = [row.message_id for row in rows]
    connection.execute(update(messages).where(messages.c.message_id.in_(ids)).values(values))


def settle(
    connection: Connection, taken: LeasedMessages, outcome: DeliveryOutcome
) -> list[Advance]:
    """Record the outcome of a delivery. Return the changes of the runs whose delivery state is new."""
    ids, now = taken.ids, now_us()
    rows = connection.execute(select(messages).where(messages.c.message_id.in_(ids))).all()
    news = {
        UUID(bytes=row.of_run)
        for row in rows
        if outcome.trouble is None or (row.trouble, row.status) != tuple(outcome)
    }
    moved = []
    for run_id in sorted(news):  # lock the run's row before its data, like every other writer
        with suppress(NotFound):
            moved.append(move_on(connection, run_id, now))
    for row in rows:
        _change(connection, [row], **_settled(row, outcome, now))
    _drop_overtaken(connection, messages.c.message_id.in_(ids))
    return moved


def _settled(row: Row[Any], outcome: DeliveryOutcome, now: int) -> dict[str, Any]:
    if outcome.trouble is None:
        return {"sent": now, "due": None, "trouble": None, "status": None}
    wait = min(RETRY_US << min(max(row.attempts - 1, 0), 16), RETRY_MAX_US)
    # Without a time, it was withdrawn meanwhile.
    is_over = row.due is None or now - row.made > GIVE_UP_US
    due = None if is_over else now + wait
    return {"due": due, **outcome._asdict()}


def of_runs(connection: Connection, run_ids: Collection[bytes]) -> dict[bytes, list[DeliveryState]]:
    """Return, by run, the delivery of each alert's newest message to each target."""
    rows = connection.execute(
        select(messages).where(messages.c.of_run.in_(run_ids)).order_by(messages.c.made)
    )
    newest = {(row.of_run, row.rule, row.target): row for row in rows}
    found: dict[bytes, list[DeliveryState]] = {}
    for row in newest.values():
        found.setdefault(row.of_run, []).append(_delivery(row))
    return found


def _delivery(row: Row[Any]) -> DeliveryState:
    return DeliveryState(*(getattr(row, name) for name in DeliveryState._fields))


def subject_of(run_id: bytes, row: Any) -> Subject:
    """Return the run of a row that has the columns project, name and owner."""
    return Subject(str(UUID(bytes=run_id)), row.project, row.name, row.owner)


class ListedMessages(NamedTuple):
    """Messages with their run and title, and the total number without the limit."""

    messages: list[tuple[Subject, str, DeliveryState]]
    total: int


def listed(
    connection: Connection, limit: int, within: Collection[str] | None = None, *, sent: bool
) -> ListedMessages:
    """Return messages that were ``sent``, or were not: failed ones first, then newest first.

    ``within`` limits them to some projects; None is all.
    """
    table = messages.c
    joined = messages.join(runs, runs.c.run_id == table.of_run)
    which = [table.sent.is_not(None) if sent else table.sent.is_(None), runs.c.deleted == 0]
    if within is not None:
        which.append(runs.c.project.in_(within))
    total = connection.scalar(select(func.count()).select_from(joined).where(*which))
    rows = connection.execute(
        select(messages, runs.c.project, runs.c.name, runs.c.owner)
        .select_from(joined)
        .where(*which)
        .order_by(table.trouble.is_(None), func.coalesce(table.sent, table.made).desc())
        .limit(limit)
    )
    found = [(subject_of(row.of_run, row), row.title, _delivery(row)) for row in rows]
    return ListedMessages(found, total or 0)


@dataclass(frozen=True, slots=True)
class TargetState:
    """The state of a target: waiting messages, when one was last sent, and why the newest failed one was not sent.

    ``late`` counts those of ``waiting`` that are overdue or failed, without those held back or muted.
    """

    waiting: int
    late: int
    sent: int | None
    trouble: Trouble | None
    status: int | None


def target_states(connection: Connection) -> dict[str, TargetState]:
    """Return the state of each target that had a message within the last `KEPT_US`."""
    table, now = messages.c, now_us()
    waiting = func.count(table.due)
    late = waiting.filter(or_(table.due <= now, table.trouble.is_not(None)), ~_muted(now))
    sent = func.max(table.sent)
    counted = connection.execute(
        select(table.target, waiting.label("waiting"), late.label("late"), sent.label("sent"))
        .group_by(table.target)
    ).all()  # fmt: skip
    failing = connection.execute(
        select(table.target, table.trouble, table.status)
        .where(table.sent.is_(None), table.trouble.is_not(None))
        .order_by(table.made)
    )
    troubles = {row.target: (row.trouble, row.status) for row in failing}
    return {
        row.target: TargetState(
            row.waiting, row.late, row.sent, *troubles.get(row.target, (None, None))
        )
        for row in counted
    }


def forget(connection: Connection, run_id: bytes) -> None:
    """Delete all messages of a run."""
    connection.execute(delete(messages).where(messages.c.of_run == run_id))


def tidy(connection: Connection, targets: Collection[str], now: int) -> None:
    """Give up messages to targets not in ``targets``, and delete messages settled or given up after `KEPT_US`."""
    table = messages.c
    removed = [table.due < now - HOUR_US, table.target.not_in(targets)]
    connection.execute(update(messages).where(*removed).values(due=None, trouble="removed"))
    connection.execute(delete(messages).where(table.due.is_(None), table.made < now - KEPT_US))
