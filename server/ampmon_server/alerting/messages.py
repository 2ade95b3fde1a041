"""The text of alert messages, and the outcomes of sending them. In names, `plain` removes markup and mentions."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Literal, NamedTuple, get_args

import msgspec

from ampmon.system.plain import cut
from ampmon.wire import Finding, Severity
from ampmon_server.alerting.machine import Alert, AlertEvent
from ampmon_server.model.words import count, plural, steps


LISTED = 10
"""How many of the held-back messages one combined message lists."""

_LINE_MAX, _LISTED_MAX = 300, 80
"""Most characters of a line, and of a line in a combined message: some services refuse more than 1024 in all."""
_RANK = "rank"
"""The evidence key that holds the rank of a finding about one rank."""
_DEFUSED = str.maketrans({"<": "‹", ">": "›", "@": "@\u200b"})

Kind = Literal["info", "success", "warning", "failure"]
"""Apprise's type of a message, which sets its colour."""
_KINDS: Mapping[Severity, Kind] = {"notice": "info", "warning": "warning", "critical": "failure"}


class Message(NamedTuple):
    title: str
    body: str
    kind: Kind


Trouble = Literal[
    "failed",
    "missing",
    "private",
    "redirect",
    "refused",
    "removed",
    "slow",
    "unreachable",
    "untrusted",
    "unusable",
]
"""Why a message was not delivered; docs/alerts.md explains each."""
TROUBLES: tuple[Trouble, ...] = get_args(Trouble)


class DeliveryOutcome(NamedTuple):
    """The outcome of a delivery. ``trouble`` is None if it was sent; ``status`` is the receiver's, None if unknown."""

    trouble: Trouble | None = None
    status: int | None = None


class Subject(NamedTuple):
    """The run that an alert is about."""

    run_id: str
    project: str
    name: str
    owner: str


class Found(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The parts of a finding that are stored with its alert, to describe it after it is gone."""

    title: str
    culprit: str | None = None
    rank: int | None = None
    first_step: int | None = None
    last_step: int | None = None

    @classmethod
    def of(cls, finding: Finding) -> Found:
        rank = finding.evidence.get(_RANK)
        return cls(
            title=finding.title,
            culprit=finding.parameters[0] if finding.parameters else None,
            rank=rank if isinstance(rank, int) else None,
            first_step=finding.first_step,
            last_step=finding.last_step,
        )


def message(
    subject: Subject, found: Found, alert: Alert, event: AlertEvent, public_url: str | None
) -> Message:
    """Write the message for the ``event`` of an alert."""
    over = event == "resolved"
    heads = {"firing": alert.severity, "worse": f"{alert.severity} now", "resolved": "resolved"}
    lines = [
        f"Run: {plain(subject.name)} in {plain(subject.project)}, of {plain(subject.owner)}",
        f"{'It was' if over else 'Found'}: {plain(found.title)} ({alert.severity})",
        _when(alert, over=over),
    ]
    if found.culprit is not None:
        lines.append(f"Culprit: {plain(found.culprit)}")
    if found.rank is not None:
        lines.append(f"First silent rank: {found.rank}")
    if found.first_step is not None and found.last_step is not None:
        lines.append(steps(found.first_step, found.last_step).capitalize())
    lines.append(link(subject.run_id, found, public_url) or f"Run id: {subject.run_id}")
    title = f"ampmon {heads[event]}: {plain(subject.name)}: {plain(found.title)}"
    return Message(title, "\n".join(lines), "success" if over else _KINDS[alert.severity])


def link(run_id: str, found: Found, public_url: str | None) -> str | None:
    """The address of the run's page at the finding's steps; None without ``public_url``."""
    if public_url is None:
        return None
    window = ""
    if found.first_step is not None and found.last_step is not None:
        window = f"?start={found.first_step}&stop={found.last_step + 1}"
    return f"{public_url}/#/runs/{run_id}{window}"


def together(titles: Sequence[str], hourly: int, public_url: str | None) -> Message:
    """Write one message that lists those held back by the ``hourly`` limit."""
    lines = [
        f"More than {count(hourly)} messages an hour were due here, so these were held back:",
        *(f"- {cut(title, _LISTED_MAX)}" for title in titles[:LISTED]),
    ]
    if len(titles) > LISTED:
        lines.append(f"and {count(len(titles) - LISTED)} more")
    if public_url is not None:
        lines.append(f"{public_url}/")
    title = f"ampmon: {plural(len(titles), 'alert was', 'alerts were')} held back"
    return Message(title, "\n".join(lines), "warning")


def trial(target: str, public_url: str | None) -> Message:
    """Write the message that `ampmon alerts test` sends."""
    lines = [f"This is a test of the target {target}. Alerts of ampmon arrive here."]
    if public_url is not None:
        lines.append(f"{public_url}/")
    return Message("ampmon: test alert", "\n".join(lines), "info")


def plain(words: str) -> str:
    """Put text on one line, defuse markup and mentions, and cut it to 300 characters."""
    line = "".join(" " if unicodedata.category(each)[0] in "CZ" else each for each in words)
    line = " ".join(line.split()).translate(_DEFUSED).replace("](", "] (")
    return cut(line, _LINE_MAX)


def _when(alert: Alert, *, over: bool) -> str:
    begun = f"Since {_time(alert.since)}"
    if over and alert.resolved is not None:
        begun = f"From {_time(alert.since)} to {_time(alert.resolved)}"
    return f"{begun}, by the server's clock"


def _time(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
