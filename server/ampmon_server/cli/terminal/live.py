"""Draws a running run at the foot of a terminal, every second. Events scroll by above it."""

from __future__ import annotations

import time

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ampmon.system.plain import plain
from ampmon_server.cli.doctor.printing import SHAPES
from ampmon_server.cli.terminal.following import Moment, News, RunFollower
from ampmon_server.cli.terminal.numbers import scale_of, skipped_of, underflow_of, value_of
from ampmon_server.cli.terminal.tailing import moments
from ampmon_server.client import ApiClient
from ampmon_server.model.words import count, plural


LABEL = 12
COLUMNS_MAX = 200
FINDINGS_MAX = 4
STATUS_STYLES = {"running": "green", "silent": "yellow", "crashed": "bold red"}


def follow(server: ApiClient, run_id: str) -> None:
    """Draw a run until it ends. Raises ClientError, and KeyboardInterrupt after it restores the terminal."""
    console = Console(highlight=False)

    def columns() -> int:
        return max(min(console.width - LABEL - 1, COLUMNS_MAX), 1)

    follower = RunFollower(server, run_id, columns=columns)
    with Live(console=console, auto_refresh=False) as live:
        for moment in moments(follower, lambda why: _print(console, News(why, "warning"))):
            for news in moment.news:
                _print(console, news)
            live.update(drawing(moment), refresh=True)


def _print(console: Console, news: News) -> None:
    words = Text.assemble((time.strftime("%H:%M:%S  "), "dim"))
    if news.severity is not None:
        words.append_text(Text.assemble(SHAPES[news.severity], "  "))
    console.print(words.append(news.words))


def drawing(moment: Moment) -> Group:
    """Draw a run at one moment."""
    run = moment.run
    head = Text.assemble((plain(run.name), "bold"), f"  {plain(run.project)}, ")
    head.append(run.status, STATUS_STYLES.get(run.status, ""))
    head.append(f", {plural(run.updates, 'update')}{_rate(moment)}")
    rows = Table.grid(padding=(0, 1, 0, 0))
    rows.add_column(width=LABEL - 1, style="dim")
    rows.add_column()
    _add_scale(rows, moment)
    rows.add_row("skipped", skipped_of(run))
    rows.add_row("underflow", underflow_of(run))
    if moment.loss is not None:
        rows.add_row("loss", value_of(moment.loss))
    for place, finding in enumerate(moment.findings[:FINDINGS_MAX]):
        words = Text.assemble(SHAPES[finding.severity], "  ", finding.title)
        rows.add_row("" if place else "findings", words)
    if moment.findings:
        more = len(moment.findings) - FINDINGS_MAX
        left = f"{more} more, and " if more > 0 else ""
        rows.add_row("", Text(f"{left}what to change: ampmon show {run.run_id[:13]}", "dim"))
    return Group(Text(""), head, rows)


def _add_scale(rows: Table, moment: Moment) -> None:
    drawn, now = moment.drawn, scale_of(moment.run.scale, moment.run.scale_kind)
    low, high = scale_of(2.0**drawn.low), scale_of(2.0**drawn.high)
    rows.add_row("loss scale", now if low == high else f"{now} (between {low} and {high})")
    if drawn.line:
        rows.add_row("", Text(drawn.line, no_wrap=True))
        rows.add_row("", Text(drawn.marks, "red", no_wrap=True))


def _rate(moment: Moment) -> str:
    if not moment.rate or moment.ended:
        return ""
    return (
        f", {moment.rate:.1f} a second"
        if moment.rate < 10
        else f", {count(round(moment.rate))} a second"
    )
