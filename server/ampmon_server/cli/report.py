"""``ampmon report``: writes a run as one file that opens without a server."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ampmon.system.plain import plain
from ampmon_server.cli.exits import CANNOT, reason, size_of
from ampmon_server.cli.which import add_run, add_server
from ampmon_server.model.names import file_name


if TYPE_CHECKING:
    from ampmon_server.client import ApiClient


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the file to write (the run's name, here)"
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    add_server(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the file and print its name and size. Return 0, or 2 if no file was written."""
    from ampmon_server.client import ClientError, answering, choose

    try:
        with answering(arguments.url, arguments.data_dir, arguments.token_file) as server:
            chosen = choose(server, arguments.run)
            file = arguments.output or Path(f"{file_name(chosen.name)}.html")
            refuse(file, arguments.force)
            text = made(server, chosen.run_id)
        _write(file, text)
    except (ClientError, OSError) as why:
        print(f"ampmon report: {reason(why)}", file=sys.stderr)
        return CANNOT
    print(f"{file}: {plain(chosen.name)}, {size_of(file)}, most of it Plotly's script")
    return 0


def made(server: ApiClient, run_id: str) -> str:
    """Return a run's report as HTML. Shows a progress bar."""
    from importlib.metadata import version

    from ampmon_server.charts import RUN_FIGURES
    from ampmon_server.cli.progress import progress
    from ampmon_server.report import gather, page

    with progress() as bar:
        task = bar.add_task("report", total=len(RUN_FIGURES) + 2)

        def each(what: str) -> None:
            bar.update(task, advance=1, description=what)

        return page(gather(server, run_id, each), version("ampmon"))


def refuse(file: Path, force: bool) -> None:
    """Raise FileExistsError if ``file`` exists and ``force`` is not set."""
    if file.exists() and not force:
        raise FileExistsError(
            f"{file} already exists: name another file with -o, or overwrite it with --force"
        )


def _write(file: Path, text: str) -> None:
    """Write to a temporary file and rename it at the end, so a failure leaves no partial file."""
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        beside.write_text(text, "utf-8")
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)
