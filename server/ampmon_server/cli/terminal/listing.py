"""``ampmon runs``: lists runs, newest first, as a table or as JSON."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ampmon_server.cli.exits import CANNOT
from ampmon_server.cli.which import add_server


if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from ampmon_server.cli.terminal.answers import RunListAnswer, SummaryAnswer

ID_MIN = 8
"""Minimum characters of an id to show. More are shown only if two ids would look alike."""
PIPED_COLUMNS = 200
"""Width of the table in a pipe, which has none of its own."""
STATUSES = ("running", "finished", "crashed", "silent")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "search", nargs="*", metavar="WORD", help="a part of the name, project, owner or a tag"
    )
    parser.add_argument("--project", help="only of this project")
    parser.add_argument("--status", choices=STATUSES, help="only in this state")
    parser.add_argument("--tag", help="only with this tag")
    parser.add_argument("--archived", action="store_true", help="list archived runs instead")
    parser.add_argument(
        "--limit",
        type=int,
        default=20,
        metavar="N",
        help="list at most N runs, up to 1000 (%(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the server's answer as JSON")
    add_server(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the list. Return 0, or 2 if the server gives no answer."""
    from ampmon_server.cli.terminal.answers import RunListAnswer
    from ampmon_server.client import ClientError, answering
    from ampmon_server.client.answers import read

    try:
        with answering(arguments.url, arguments.data_dir, arguments.token_file) as server:
            body = server.get("/runs", _query(arguments))
            listed = read(body, RunListAnswer)
            filtered = bool(set(_query(arguments)) - {"limit"})
            hidden = {"archived": "true", "limit": "1"}
            bare = not listed.runs and not filtered and not arguments.json
            archived = read(server.get("/runs", hidden), RunListAnswer).total if bare else 0
    except ClientError as why:
        print(f"ampmon runs: {why}", file=sys.stderr)
        return CANNOT
    if arguments.json:
        print(body.decode())
    elif listed.runs:
        _print(listed)
    elif archived:
        print(f"All runs are archived ({archived}). List them: ampmon runs --archived")
    else:
        print("No run matches." if filtered else "No runs yet. Start one: ampmon run train.py")
    return 0


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


def _print(listed: RunListAnswer) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPED_COLUMNS
    console.print(_table(listed.runs))
    more = listed.total - len(listed.runs)
    if more > 0:
        console.print(f"{more} more: ampmon runs --limit {min(listed.total, 1000)}", style="dim")


def _table(runs: Sequence[SummaryAnswer]) -> Table:
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


def _cells(run: SummaryAnswer, id_length: int, *, several: bool) -> Iterator[str | Text]:
    from rich.text import Text

    from ampmon.system.plain import plain
    from ampmon_server.cli.doctor.printing import SHAPES
    from ampmon_server.cli.terminal.numbers import duration, scale_of
    from ampmon_server.model.words import NONE, count, percent

    yield Text(plain(f"{run.project}/{run.name}" if several else run.name))
    yield run.run_id[:id_length]
    yield run.status
    yield count(run.updates)
    yield NONE if run.skip_rate is None else percent(run.skip_rate)
    yield scale_of(run.scale, run.scale_kind)
    yield duration(time.time() - run.started / 1e6)
    shape, style = SHAPES[run.severity]
    yield Text(shape, style) if run.verdict is not None else Text(NONE, "dim")


def _id_length(ids: Sequence[str]) -> int:
    """How many characters distinguish all ids."""
    return next(
        length for length in range(ID_MIN, 37) if len({each[:length] for each in ids}) == len(ids)
    )
