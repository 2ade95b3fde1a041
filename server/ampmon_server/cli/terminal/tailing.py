"""``ampmon tail``: follows a run, in a redrawn view on a terminal, or as plain lines for logs and pipes."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ampmon.system.plain import plain
from ampmon_server.cli.doctor.printing import SHAPES
from ampmon_server.cli.terminal.answers import (
    scale_now,
    scale_of,
    skipped_of,
    underflow_of,
    value_of,
)
from ampmon_server.cli.terminal.following import Moment, News, RunFollower
from ampmon_server.client import ApiClient, ClientError, RequestRefused, answering
from ampmon_server.model.words import SPACE, count, percent, plural


LOOK_S = 1.0
REST = 4.0
"""Minimum pause after a look, in multiples of its duration."""
LABEL = 12
COLUMNS_MAX = 200
FINDINGS_MAX = 4
STATUS_STYLES = {"running": "green", "silent": "yellow", "crashed": "bold red"}


def run(arguments: argparse.Namespace) -> None:
    """Follow a run to its end."""
    console = Console(highlight=False)
    with answering.chosen(arguments, for_long=True) as (server, run):
        if arguments.follow or not console.is_terminal or console.is_dumb_terminal:
            _print_lines(server, run.run_id, arguments.every)
        else:
            _draw(console, server, run.run_id)


def moments(follower: RunFollower, lost: Callable[[str], object]) -> Iterator[Moment]:
    """Yield a run's state about once a second until it ends. Blocks.

    ``lost`` is called with the reason, once for each outage of the server. Raises ClientError if the first look fails,
    or if the server later refuses access to the run.
    """
    moment, away = None, False
    while moment is None or not moment.ended:
        began = time.monotonic()
        try:
            moment = follower.look()
        except RequestRefused:
            raise
        except ClientError as why:
            if moment is None:
                raise
            if not away:
                lost(f"{why}; trying again")
            away = True
        else:
            away = False
            yield moment
        if moment is None or not moment.ended:
            time.sleep(max(LOOK_S, REST * (time.monotonic() - began)))


def _print_lines(server: ApiClient, run_id: str, every_s: float) -> None:
    """Print lines until the run ends: events as they happen, and the state every ``every_s`` seconds."""
    due_s, is_first = 0.0, True
    for moment in moments(RunFollower(server, run_id), lost=lambda why: _say(f"! {why}")):
        known = [News(each.title, each.severity) for each in moment.findings] if is_first else []
        is_first = False
        for news in (*known, *moment.news):
            _say(_line(news))
        if moment.ended or time.monotonic() >= due_s:
            _say(state(moment))
            due_s = time.monotonic() + every_s


def _line(news: News) -> str:
    return f"{news.severity}: {news.words}" if news.severity else news.words


def state(moment: Moment) -> str:
    """Format a run's state in one line for programs to read, without spaces inside numbers."""
    run = moment.run
    words = [f"step {'–' if run.last_step is None else run.last_step}"]
    words += [f"scale {scale_of(run.scale, run.scale_kind)}", f"skipped {skipped_of(run)}"]
    if moment.loss is not None:
        words.append(f"loss {value_of(moment.loss)}")
    if run.subnormal_fraction is not None:
        words.append(f"subnormal {percent(run.subnormal_fraction)}")
    return "  ".join([*words, run.status])


def _say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {words.replace(SPACE, '')}", flush=True)


def _draw(console: Console, server: ApiClient, run_id: str) -> None:
    """Draw a run until it ends, at the foot of the terminal. Events scroll by above it."""

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
    drawn = moment.drawn
    rows.add_row("loss scale", scale_now(moment.run, drawn))
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
