"""``ampmon show``: prints one run: its state, its numbers, and its findings with their fixes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ampmon_server.cli.exits import CANNOT
from ampmon_server.cli.which import add_run, add_server


if TYPE_CHECKING:
    from ampmon_server.cli.doctor.printing import Paper
    from ampmon_server.cli.terminal.answers import LoggedNames, SummaryAnswer
    from ampmon_server.client import ApiClient

COLUMNS = 56
"""Width of a sketch of the scale. With its label it fits 80 columns."""
LOGGED_MAX = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--json", action="store_true", help="print the server's answers as JSON")
    add_server(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show a run. Return 0, or 2 if there is no answer."""
    from ampmon_server.client import ClientError, answering, choose

    try:
        with answering(arguments.url, arguments.data_dir, arguments.token_file) as server:
            run_id = choose(server, arguments.run).run_id
            if arguments.json:
                print(_as_json(server, run_id))
            else:
                show(server, run_id)
    except ClientError as why:
        print(f"ampmon show: {why}", file=sys.stderr)
        return CANNOT
    return 0


def _as_json(server: ApiClient, run_id: str) -> str:
    run, diagnosis = (server.get(f"/runs/{run_id}{part}").decode() for part in ("", "/diagnosis"))
    return f'{{"run":{run},"diagnosis":{diagnosis}}}'


def show(server: ApiClient, run_id: str) -> None:
    """Print a run. Blocks. Raises ClientError."""
    from ampmon_server.cli.doctor.printing import Paper
    from ampmon_server.cli.terminal.answers import LoggedNames, SummaryAnswer
    from ampmon_server.client.answers import Diagnosed, read

    path = f"/runs/{run_id}"
    summary = read(server.get(path), SummaryAnswer)
    diagnosed = read(server.get(f"{path}/diagnosis"), Diagnosed)
    logged = read(server.get(f"{path}/scalars"), LoggedNames)
    paper = Paper(summary, server.page)
    paper.head(diagnosed)
    if summary.updates:
        paper.blank()
        _scale(paper, server, summary)
        for label, words in _rows(summary, logged):
            paper.row(label, words)
        paper.blank()
    paper.findings(diagnosed)


def _scale(paper: Paper, server: ApiClient, run: SummaryAnswer) -> None:
    from ampmon_server.cli.terminal.numbers import scale_of
    from ampmon_server.client.sketch import sketch

    drawn = sketch(server.get(f"/runs/{run.run_id}/figures/scale", {"width": "100"}), COLUMNS)
    now = scale_of(run.scale, run.scale_kind)
    low, high = scale_of(2.0**drawn.low), scale_of(2.0**drawn.high)
    between = "" if low == high else f" (between {low} and {high})"
    paper.row("loss scale", f"{now}{between if drawn.line else ''}")
    for line in (drawn.line, drawn.marks):
        if line.strip():
            paper.row("", line)


def _rows(run: SummaryAnswer, logged: LoggedNames) -> Iterator[tuple[str, str]]:
    from ampmon.system.plain import plain
    from ampmon_server.cli.terminal.numbers import duration, skipped_of, underflow_of, value_of
    from ampmon_server.model.words import count, percent, plural

    yield "skipped", skipped_of(run)
    yield "underflow", underflow_of(run)
    if values := [f"{plain(each.name, 64)} {value_of(each)}" for each in logged.names[:LOGGED_MAX]]:
        yield "logged", ", ".join(values)
    if run.elapsed is not None:
        yield "time", f"{duration(run.elapsed)}, at step {count(run.last_step or 0)}"
    if run.ranks > 1 or run.attempts > 1:
        yield "processes", f"{plural(run.ranks, 'rank')}, {plural(run.attempts, 'start')}"
    if run.overhead is not None:
        yield "overhead", f"{percent(run.overhead)} of the training time"
    if run.lost_records:
        yield "lost", f"{plural(run.lost_records, 'record')} never received"
