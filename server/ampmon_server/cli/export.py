"""``ampmon export``: writes a run's rows to a file for pandas, DuckDB or a spreadsheet."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias

from ampmon_server.cli.exits import CANNOT, reason, size_of
from ampmon_server.cli.report import refuse
from ampmon_server.cli.which import add_run, add_server
from ampmon_server.model.names import file_name


if TYPE_CHECKING:
    from ampmon_server.client import ApiClient
    from ampmon_server.exchange.formats import Format, Table

FORMATS: tuple[Format, ...] = ("csv", "jsonl", "parquet", "arrow")
TABLES = ("updates", "skips", "events", "samples", "scalars")
_READ = 2**18
Count: TypeAlias = Callable[[int], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--what", choices=TABLES, default="updates", help="the rows (%(default)s)")
    parser.add_argument("--format", choices=FORMATS, help="the format (FILE's suffix, else jsonl)")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the file to write; - for stdout"
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    add_server(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the file and print its size. Return 0, or 2 if no file was written."""
    from ampmon.errors import AmpmonError
    from ampmon.system.plain import plain
    from ampmon_server.cli.progress import progress
    from ampmon_server.client import ClientError, answering, choose

    kind, what = _format(arguments), arguments.what
    try:
        with answering(arguments.url, arguments.data_dir, arguments.token_file) as server:
            chosen = choose(server, arguments.run)
            file = arguments.output or Path(f"{file_name(chosen.name)}-{what}.{kind}")
            with _opened(file, arguments.force) as output, progress() as bar:
                task = bar.add_task(what, total=chosen.updates if what == "updates" else None)
                rows = copy(
                    server, chosen.run_id, what, kind, output, lambda n: bar.advance(task, n)
                )
    except BrokenPipeError:  # main ends quietly then
        raise
    except (ClientError, AmpmonError, OSError) as why:
        print(f"ampmon export: {reason(why)}", file=sys.stderr)
        return CANNOT
    if str(file) != "-":
        print(f"{file}: {plain(chosen.name)}, {rows:,} rows of {what}, {size_of(file)}")
    return 0


def copy(
    server: ApiClient, run_id: str, what: Table, kind: Format, output: IO[bytes], count: Count
) -> int:
    """Write a table of a run to ``output`` and return its row count. Calls ``count`` with the rows of each part."""
    whole = kind in {"csv", "jsonl"}
    fields: dict[str, str] = {"what": what, "format": kind if whole else "arrow"}
    rows = -1 if kind == "csv" else 0
    written = _lines if whole else _columns
    with server.stream(f"/runs/{run_id}/export", fields) as answer:
        for part, more in written(answer, what, kind):
            output.write(part)
            rows += more
            count(more)
    return max(rows, 0)


def _lines(answer: object, what: Table, kind: Format) -> Iterator[tuple[bytes, int]]:
    for part in answer.stream(_READ):  # type: ignore[attr-defined]
        yield part, part.count(b"\n")


def _columns(answer: object, what: Table, kind: Format) -> Iterator[tuple[bytes, int]]:
    """Build Parquet here from Arrow batches, which also know their number of rows."""
    from ampmon_server.exchange.formats import columnar

    into, batches = columnar(what, kind)
    for batch in batches(answer):
        yield into.write_batch(batch), batch.num_rows
    yield into.close(), 0


def _format(arguments: argparse.Namespace) -> Format:
    suffix = "" if arguments.output is None else arguments.output.suffix[1:].lower()
    asked = arguments.format or suffix
    return next((each for each in FORMATS if each == asked), "jsonl")


@contextmanager
def _opened(file: Path, force: bool) -> Iterator[IO[bytes]]:
    """Write to a temporary file and rename it at the end, so a failure leaves no partial file."""
    if str(file) == "-":
        yield sys.stdout.buffer
        return
    refuse(file, force)
    if not file.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {file.parent}: create it first")
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with beside.open("wb") as output:
            yield output
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)
