"""When an alert is sent: the states of an alert, one for each run and rule. Pure; times are us since the epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from ampmon.wire import Severity
from ampmon_server.model.severities import RANKS, worse


State = Literal["pending", "firing", "resolved"]
AlertEvent = Literal["firing", "worse", "resolved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """How a finding stands. ``severity`` is the worst since it was there, which it has been ``since``.

    ``fired`` and ``resolved`` are of the newest time that it did, ``told`` when targets were notified of it: None
    where none was. What gets worse while it is muted is to be sent yet: it puts ``told`` before ``fired``. Who has
    ``acknowledged`` it knows; what gets worse is nobody's again.
    """

    state: State
    severity: Severity
    since: int
    fired: int | None = None
    resolved: int | None = None
    told: int | None = None
    acknowledged: int | None = None
    acknowledged_by: str | None = None

    @property
    def heard(self) -> bool:
        """Whether targets know how bad it is."""
        return self.told is not None and self.told >= (self.fired or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """For how long a finding of each severity has to stay before it fires, and how long after its end it does not."""

    after: Mapping[Severity, int]
    cool_down: int


class AlertStep(NamedTuple):
    """The next state, None for nothing to remember; what is to be sent; when to look again, if anything is due."""

    alert: Alert | None
    event: AlertEvent | None = None
    due: int | None = None


def step(
    alert: Alert | None,
    found: Severity | None,
    now: int,
    patience: Patience,
    *,
    muted: bool = False,
) -> AlertStep:
    """What becomes of an alert whose finding is there with the severity ``found`` now, or is not.

    A clock that went back stands still. What is ``muted`` changes its state, and is sent when it is not any more.
    """
    now = max(now, _newest(alert))
    if found is None:
        return _gone(alert, now, muted=muted)
    if alert is None or alert.state == "resolved":
        alert = _begun(alert, found, now)
    if alert.state == "pending":
        alert = replace(alert, severity=worse(alert.severity, found))
        due = _fires(alert, patience)
        if now < due:
            return AlertStep(alert, None, due)
        alert = replace(alert, state="firing", fired=now)
    return _there(alert, found, now, muted=muted)


def _newest(alert: Alert | None) -> int:
    if alert is None:
        return 0
    return max(alert.since, alert.fired or 0, alert.resolved or 0, alert.told or 0)


def _begun(before: Alert | None, found: Severity, now: int) -> Alert:
    fresh = Alert(state="pending", severity=found, since=now)
    if before is None:
        return fresh
    return replace(fresh, fired=before.fired, resolved=before.resolved)


def _fires(alert: Alert, patience: Patience) -> int:
    """When what is pending fires, if it stays."""
    due = alert.since + patience.after[alert.severity]
    return due if alert.resolved is None else max(due, alert.resolved + patience.cool_down)


def _there(alert: Alert, found: Severity, now: int, *, muted: bool) -> AlertStep:
    """Of what fires, and goes on."""
    rose = RANKS[found] < RANKS[alert.severity]
    if rose:
        alert = replace(alert, severity=found, acknowledged=None, acknowledged_by=None)
        if muted and alert.told is not None:
            alert = replace(alert, told=min(alert.told, (alert.fired or 0) - 1))
    if muted or (alert.heard and not rose):
        return AlertStep(alert)
    event: AlertEvent = "firing" if alert.told is None else "worse"
    return AlertStep(replace(alert, told=now), event)


def _gone(alert: Alert | None, now: int, *, muted: bool) -> AlertStep:
    """Of what is there no more: what never fired is forgotten."""
    if alert is None or alert.state == "resolved":
        return AlertStep(alert)
    if alert.state == "pending":
        before = None if alert.fired is None else replace(alert, state="resolved")
        return AlertStep(before)
    event: AlertEvent | None = None if muted or alert.told is None else "resolved"
    return AlertStep(replace(alert, state="resolved", resolved=now), event)
