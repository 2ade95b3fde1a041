"""``ampmon runs`` and ``ampmon show``: list runs, newest first, and print one with its numbers and findings."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ampmon.system.plain import plain
from ampmon_server.cli.terminal.answers import (
    LoggedNames,
    duration,
    overhead_of,
    scale_now,
    scale_of,
    skipped_of,
    underflow_of,
    value_of,
)
from ampmon_server.client import ApiClient, answering
from ampmon_server.client.answers import Diagnosed, Run, RunsAnswer, read
from ampmon_server.client.sketch import sketch
from ampmon_server.model.words import NONE, count, percent, plural


# Text is drawn with rich. JSON is printed without it too, as where only what trains is installed.
if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from ampmon_server.cli.doctor.printing import Paper

ID_MIN = 8
"""Minimum characters of an id to show. More are shown only if two ids would look alike."""
PIPED_COLUMNS = 200
"""Width of the table in a pipe, which has none of its own."""
COLUMNS = 56
"""Width of a sketch of the scale. With its label it fits 80 columns."""
LOGGED_MAX = 6


def runs(arguments: argparse.Namespace) -> None:
    """Print the list of runs, as a table or as JSON."""
    query = _query(arguments)
    with answering.asked(arguments) as server:
        body = server.get("/runs", query)
        listed = read(body, RunsAnswer)
        filtered = bool(set(query) - {"limit"})
        hidden = {"archived": "true", "limit": "1"}
        bare = not listed.runs and not filtered and not arguments.json
        archived = read(server.get("/runs", hidden), RunsAnswer).total if bare else 0
    if arguments.json:
        print(body.decode())
    elif listed.runs:
        _print(listed)
    elif archived:
        print(f"All runs are archived ({archived}). List them: ampmon runs --archived")
    else:
        print("No run matches." if filtered else "No runs yet. Start one: ampmon run train.py")


def _query(arguments: argparse.Namespace) -> dict[str, str]:
    asked = {
        "project": arguments.project,
        "status": arguments.status,
        "tag": arguments.tag,
        "search": " ".join(arguments.search),
        "archived": "true" if arguments.archived else "",
        "limit": str(arguments.limit),
    }
    return {name: value for name, value in asked.items() if value}


def _print(listed: RunsAnswer) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPED_COLUMNS
    console.print(_table(listed.runs))
    more = listed.total - len(listed.runs)
    if more > 0:
        console.print(f"{more} more: ampmon runs --limit {min(listed.total, 1000)}", style="dim")


def _table(runs: Sequence[Run]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    several = len({run.project for run in runs}) > 1
    table.add_column("NAME", overflow="fold", min_width=12)
    table.add_column("ID", no_wrap=True)
    table.add_column("STATUS", no_wrap=True)
    for name in ("UPDATES", "SKIPPED", "SCALE", "AGE"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("FINDING", no_wrap=True)
    length = _id_length([run.run_id for run in runs])
    for run in runs:
        table.add_row(*_cells(run, length, several=several))
    return table


def _cells(run: Run, id_length: int, *, several: bool) -> Iterator[str | Text]:
    from rich.text import Text

    from ampmon_server.cli.doctor.printing import SHAPES

    yield Text(plain(f"{run.project}/{run.name}" if several else run.name))
    yield run.run_id[:id_length]
    yield run.status
    yield count(run.updates)
    yield NONE if run.skip_rate is None else percent(run.skip_rate)
    yield scale_of(run.scale, run.scale_kind)
    yield duration(time.time() - run.started / 1e6)
    shape, style = SHAPES[run.severity]
    judged = run.verdict is not None and (run.updates or run.severity is not None)
    yield Text(shape, style) if judged else Text(NONE, "dim")


def _id_length(ids: Sequence[str]) -> int:
    """How many characters distinguish all ids."""
    return next(
        length for length in range(ID_MIN, 37) if len({each[:length] for each in ids}) == len(ids)
    )


def show(arguments: argparse.Namespace) -> None:
    """Print a run: its state, its numbers, and its findings with their fixes."""
    with answering.chosen(arguments) as (server, run):
        path = f"/runs/{run.run_id}"
        diagnosis = server.get(f"{path}/diagnosis")
        if arguments.json:
            print(f'{{"run":{server.get(path).decode()},"diagnosis":{diagnosis.decode()}}}')
            return
        from ampmon_server.cli.doctor.printing import Paper

        diagnosed = read(diagnosis, Diagnosed)
        logged = read(server.get(f"{path}/scalars"), LoggedNames)
        paper = Paper(run, server.page)
        paper.head(diagnosed)
        if run.updates:
            paper.blank()
            _scale(paper, server, run)
            for label, words in _rows(run, logged):
                paper.row(label, words)
            paper.blank()
        paper.findings(diagnosed)


def _scale(paper: Paper, server: ApiClient, run: Run) -> None:
    drawn = sketch(
        server.get(f"/runs/{run.run_id}/figures/scale", {"width": "100"}), min(COLUMNS, paper.room)
    )
    paper.row("loss scale", scale_now(run, drawn))
    for line in (drawn.line, drawn.marks):
        if line.strip():
            paper.row("", line)


def _rows(run: Run, logged: LoggedNames) -> Iterator[tuple[str, str]]:
    yield "skipped", skipped_of(run)
    yield "underflow", underflow_of(run)
    if values := [f"{plain(each.name, 64)} {value_of(each)}" for each in logged.names[:LOGGED_MAX]]:
        yield "logged", ", ".join(values)
    if run.elapsed is not None:
        yield "time", f"{duration(run.elapsed)}, at step {count(run.last_step or 0)}"
    if run.ranks > 1 or run.attempts > 1:
        yield "processes", f"{plural(run.ranks, 'rank')}, {plural(run.attempts, 'start')}"
    if run.overhead is not None:
        yield "overhead", overhead_of(run)
    if run.lost_records:
        yield "lost", f"{plural(run.lost_records, 'record')} never received"
