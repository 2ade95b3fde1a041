"""``ampmon alerts``: sends test alerts, and lists open alerts and targets."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ampmon.errors import ConfigurationError
from ampmon_server.alerting import messages
from ampmon_server.alerting.delivery import DeliveryOutcome, deliver, words
from ampmon_server.alerting.targets import Alerts, BadAlerts, Target, read
from ampmon_server.cli.token import add_command, answered, asked, shown, table
from ampmon_server.client.client import ClientError, RequestRefused


CANNOT, NOT_ALL = 2, 1
_ALERTS = (
    ("state", "state"),
    ("severity", "severity"),
    ("project", "project"),
    ("run", "name"),
    ("found", "title"),
    ("since", "since"),
    ("notified", "told"),
    ("acknowledged by", "acknowledged_by"),
)
_TARGETS = (
    ("target", "name"),
    ("kind", "kind"),
    ("min severity", "least"),
    ("projects", "projects"),
    ("waiting", "waiting"),
    ("last sent", "sent"),
    ("trouble", "trouble"),
)
"""The columns of the lists: title, and field name in the server's answer."""
_NONE = {"acknowledged_by": "nobody", "trouble": "none"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    does, name = "send a test message to each target, and print the results", "test"
    test = commands.add_parser(name, help=does, description=does)
    test.add_argument("target", nargs="?", metavar="TARGET", help="send only to this target (all)")
    add_file(test, required=True)
    add_command(commands, "list", "list the open alerts, and the state of the targets")


def add_file(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    parser.add_argument(
        "--alerts",
        type=Path,
        required=required,
        metavar="FILE",
        help="a TOML file that lists the targets of alerts",
    )
    parser.add_argument("--public-url", help="public address of the page, for the links in alerts")


def run(arguments: argparse.Namespace) -> int:
    """Run one sub-command. Return 0 for success, 1 if a test alert was not sent, 2 if nothing could be done."""
    try:
        return {"test": _test, "list": _list}[arguments.what](arguments)
    except (BadAlerts, ConfigurationError, ClientError) as problem:
        print(f"ampmon alerts: {problem}", file=sys.stderr)
        return CANNOT


def _test(arguments: argparse.Namespace) -> int:
    alerts = read(arguments.alerts, arguments.public_url)
    named = [each for each in alerts.targets if arguments.target in {None, each.name}]
    if not named:
        known = ", ".join(target.name for target in alerts.targets)
        raise BadAlerts(f"no target is called {arguments.target!r}; there are {known}")
    outcomes = asyncio.run(_try(alerts, named))
    for target, outcome in zip(named, outcomes, strict=True):
        print(f"{target.name} ({target.scheme}): {_said(outcome)}")
    return NOT_ALL if any(outcome.trouble for outcome in outcomes) else 0


async def _try(alerts: Alerts, targets: list[Target]) -> list[DeliveryOutcome]:
    tried = (
        deliver(
            target,
            messages.trial(target.name, alerts.public_url),
            allow_private=alerts.allow_private,
        )
        for target in targets
    )
    return await asyncio.gather(*tried)


def _said(outcome: DeliveryOutcome) -> str:
    if outcome.trouble is None:
        return "sent"
    return f"not sent: {words(outcome.trouble, outcome.status)}"


def _list(arguments: argparse.Namespace) -> int:
    alerts = answered(asked(arguments, lambda server: server.get("/alerts")), arguments)["alerts"]
    print("\n".join(_listed(_ALERTS, alerts)) if alerts else "No alert is open.")
    try:
        answer = asked(arguments, lambda server: server.get("/alerts/targets"))
    except RequestRefused as refused:
        if refused.status not in {401, 403}:
            raise
        return 0  # only the scope `admin` may see the targets' status
    targets = answered(answer, arguments)["targets"]
    print()
    print("\n".join(_listed(_TARGETS, targets)) if targets else "The server has no targets.")
    return 0


def _listed(columns: tuple[tuple[str, str], ...], rows: list[dict[str, Any]]) -> Iterator[str]:
    cells = [[_cell(name, row[name]) for _, name in columns] for row in rows]
    return table([[title for title, _ in columns], *cells])


def _cell(name: str, value: Any) -> str:
    if name == "waiting":
        return str(value)
    shows = _NONE.get(name) if value is None else None
    return messages.plain(shows or shown(name, value))
