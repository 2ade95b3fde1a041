"""The state machine that decides when to send an alert. Each run and rule has one alert.

Pure; times are us since the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from ampmon.wire import Severity
from ampmon_server.alerting.targets import AlertPolicy
from ampmon_server.model.thresholds import RANKS, worse


State = Literal["pending", "firing", "resolved"]
AlertEvent = Literal["firing", "worse", "resolved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """The state of an alert. ``since`` is when its finding appeared, ``severity`` the worst severity since then.

    ``fired`` and ``resolved`` are when that last happened. ``told`` is when targets were last notified since the
    finding appeared; None if they were not, or if they were notified of its end. If the finding gets worse while muted,
    ``told`` moves before ``fired``: a message is still to be sent. Getting worse also clears ``acknowledged`` and
    ``acknowledged_by``.
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
        """Whether targets were notified of the current severity."""
        return self.told is not None and self.told >= (self.fired or 0)

    @property
    def over_unheard(self) -> bool:
        """Whether it ended while muted and its targets still have to be notified of that."""
        return self.state == "resolved" and self.told is not None

    def unheard(self) -> Alert:
        """The alert with a message still to be sent, to targets that have been notified before."""
        if self.told is None:
            return self
        return replace(self, told=min(self.told, (self.fired or 0) - 1))


class AlertStep(NamedTuple):
    """The next state (None to keep nothing), the event to send, and the time to step again, if any is due."""

    alert: Alert | None
    event: AlertEvent | None = None
    due: int | None = None


def step(
    alert: Alert | None,
    found: Severity | None,
    now: int,
    policy: AlertPolicy,
    *,
    muted: bool = False,
) -> AlertStep:
    """Advance an alert by one observation. ``found`` is the finding's severity now, None if there is no finding.

    If the clock went back, the alert's newest time counts as now. A ``muted`` alert changes its state but returns no
    event. The next step after the mute returns it: that it fires, or that it ended if targets were notified before. If
    the finding returns before they know of its end, the alert goes on firing.
    """
    now = max(now, _newest(alert))
    if found is None:
        return _gone(alert, now, muted=muted)
    if alert is not None and alert.over_unheard:
        alert = replace(alert, state="firing")
    elif alert is None or alert.state == "resolved":
        alert = _begun(alert, found, now)
    if alert.state == "pending":
        alert = replace(alert, severity=worse(alert.severity, found))
        due = _fires(alert, policy)
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


def _fires(alert: Alert, policy: AlertPolicy) -> int:
    """The time at which a pending alert fires if its finding lasts."""
    due: int = alert.since + getattr(policy.after_s, alert.severity) * 1_000_000
    return (
        due if alert.resolved is None else max(due, alert.resolved + policy.cool_down_s * 1_000_000)
    )


def _there(alert: Alert, found: Severity, now: int, *, muted: bool) -> AlertStep:
    """The step of a firing alert whose finding is still there."""
    rose = RANKS[found] < RANKS[alert.severity]
    if rose:
        alert = replace(alert, severity=found, acknowledged=None, acknowledged_by=None)
        if muted:
            alert = alert.unheard()
    if muted or (alert.heard and not rose):
        return AlertStep(alert)
    event: AlertEvent = "firing" if alert.told is None else "worse"
    return AlertStep(replace(alert, told=now), event)


def _gone(alert: Alert | None, now: int, *, muted: bool) -> AlertStep:
    """The step of an alert whose finding is gone. A pending alert that never fired is forgotten."""
    if alert is None:
        return AlertStep(None)
    if alert.state == "pending":
        before = None if alert.fired is None else replace(alert, state="resolved")
        return AlertStep(before)
    if alert.state == "firing":
        alert = replace(alert, state="resolved", resolved=now)
    if muted or alert.told is None:
        return AlertStep(alert)
    return AlertStep(replace(alert, told=None), "resolved")
