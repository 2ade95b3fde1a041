"""``ampmon export``, ``report`` and ``bundle`` write a run to a file, and ``import`` stores files as a new run."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib import metadata
from pathlib import Path
from typing import IO, Any, TypeAlias
from uuid import UUID

from ampmon import __version__, wire
from ampmon.errors import ConfigurationError
from ampmon.system.installing import install
from ampmon.system.plain import plain
from ampmon_server.charts import RUN_FIGURES
from ampmon_server.cli.progress import progress
from ampmon_server.client import ApiClient, ClientError, answering
from ampmon_server.exchange import events, exported
from ampmon_server.exchange.formats import FORMATS, Format, Table, columnar
from ampmon_server.exchange.logs import CannotImport, read_log
from ampmon_server.exchange.rows import SUFFIXES
from ampmon_server.exchange.sending import log_batches, name_of, send
from ampmon_server.model.names import file_name
from ampmon_server.report import ReportData, gather, page


_BUNDLED: tuple[Table, ...] = ("updates", "skips", "events", "scalars")
_NAMES = ("owner", "host", "boot_id", "acknowledged_by", "made_by")
_READ = 2**18
Count: TypeAlias = Callable[[int], object]


def export(arguments: argparse.Namespace) -> None:
    """Write a run's rows for pandas, DuckDB or a spreadsheet, and print the file's size."""
    kind, what = _format(arguments), arguments.what
    with answering.chosen(arguments) as (server, run):
        file = arguments.output or Path(f"{file_name(run.name)}-{what}.{kind}")
        to_stdout = str(file) == "-"
        opened = nullcontext(sys.stdout.buffer) if to_stdout else _opened(file, arguments.force)
        with opened as output, progress() as bar:
            task = bar.add_task(what, total=run.updates if what == "updates" else None)
            rows = _copy(server, run.run_id, what, kind, output, lambda n: bar.advance(task, n))
    if not to_stdout:
        print(f"{file}: {plain(run.name)}, {rows:,} rows of {what}, {_size(file)}")


def report(arguments: argparse.Namespace) -> None:
    """Write a run as one file that opens without a server, and print its name and size."""
    with answering.chosen(arguments) as (server, run):
        file = arguments.output or Path(f"{file_name(run.name)}.html")
        with _opened(file, arguments.force) as output:
            output.write(page(_gathered(server, run.run_id), __version__).encode())
    print(f"{file}: {plain(run.name)}, {_size(file)}, most of it Plotly's script")


def bundle(arguments: argparse.Namespace) -> None:
    """Pack a run and the versions of this installation into one file, and print its name and size."""
    with answering.chosen(arguments) as (server, run):
        file = arguments.output or Path(f"{file_name(run.name)}.ampmon.zip")
        with _opened(file, arguments.force) as output:
            _pack(server, run.run_id, output)
    print(f"{file}: {_size(file)}. Check its contents before you send it.")


def _format(arguments: argparse.Namespace) -> Format:
    suffix = "" if arguments.output is None else arguments.output.suffix[1:].lower()
    return next((each for each in FORMATS if each == (arguments.format or suffix)), "jsonl")


def _copy(
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


def _lines(answer: Any, what: Table, kind: Format) -> Iterator[tuple[bytes, int]]:
    for part in answer.stream(_READ):
        yield part, part.count(b"\n")


def _columns(answer: Any, what: Table, kind: Format) -> Iterator[tuple[bytes, int]]:
    """Build Parquet here from Arrow batches, which also know their number of rows."""
    into, batches = columnar(what, kind)
    for batch in batches(answer):
        yield into.write_batch(batch), batch.num_rows
    yield into.close(), 0


def _gathered(server: ApiClient, run_id: str) -> ReportData:
    """Return the contents of a run's report. Shows a progress bar."""
    with progress() as bar:
        task = bar.add_task("report", total=len(RUN_FIGURES) + 2)
        return gather(server, run_id, lambda what: bar.update(task, advance=1, description=what))


def _pack(server: ApiClient, run_id: str, output: IO[bytes]) -> None:
    report = _gathered(server, run_id)
    _remove_names(report.run)
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, answer in (("run", report.run), ("diagnosis", report.diagnosis)):
            packed.writestr(f"{name}.json", json.dumps(answer, indent=1))
        for table in _BUNDLED:
            with packed.open(f"{table}.jsonl", "w", force_zip64=True) as rows:
                _copy(server, run_id, table, "jsonl", rows, lambda _: None)
        packed.writestr("report.html", page(report, __version__))
        packed.writestr("environment.json", json.dumps(_environment(), indent=1))


def _remove_names(run: dict[str, Any]) -> None:
    """Remove the names of people and machines: a bug report does not need them."""
    alerts = run["alerts"] or ()
    mutes = (alert["mute"] for alert in alerts if alert["mute"])
    for each in (run, *run["identity"]["attempts"], *alerts, *mutes):
        for name in _NAMES:
            if each.get(name):
                each[name] = "[removed]"


def _environment() -> dict[str, object]:
    """Versions of Python, the platform and packages. Never environment variables, which may hold secrets."""
    found = {each.metadata["Name"]: each.version for each in metadata.distributions()}
    return {
        "python": sys.version,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "packages": dict(sorted(found.items())),
    }


@contextmanager
def _opened(file: Path, force: bool) -> Iterator[IO[bytes]]:
    """Open a temporary file and rename it at the end, so a failure leaves no partial file."""
    # The rename at the end would replace a device too, such as /dev/null.
    if file.exists() and not (force and file.is_file()):
        rest = ", or overwrite it with --force" if file.is_file() else ""
        raise ConfigurationError(f"{file} already exists: pass another file with -o{rest}")
    if not file.parent.is_dir():
        raise ConfigurationError(f"there is no folder {file.parent}: create it first")
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with beside.open("wb") as output:
            yield output
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)


def _size(file: Path) -> str:
    """Return the size of a file, such as "14.0 kB" or "4.1 MB"."""
    size = file.stat().st_size
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


def import_(arguments: argparse.Namespace) -> None:
    """Store the files as a new run and print its name."""
    name = arguments.name or name_of(arguments.files[0])
    try:
        batches = _batches(arguments, name)
        with answering.asked(arguments, first=True) as server:
            records = _send_all(server, batches)
    except ModuleNotFoundError as missing:
        if missing.name not in {"pyarrow", "tensorboard"}:
            raise
        raise CannotImport(f"these files need {missing.name}: {install('files')}") from None
    except ValueError as error:  # the content of a file
        raise CannotImport(str(error)) from None
    print(f"{plain(name)}: {records:,} records, in the project {plain(arguments.project)}")


def _send_all(server: ApiClient, batches: Iterable[wire.Batch]) -> int:
    """Send a run's batches and return the number of records. If that fails or is interrupted, delete the run."""
    begun: set[UUID] = set()

    def noted() -> Iterator[wire.Batch]:
        for batch in batches:
            begun.add(batch.run_id)
            yield batch

    try:
        return send(server.url, server.token, noted())
    except BaseException:
        for run_id in begun:
            with suppress(ClientError):
                server.delete(f"/runs/{run_id}")
        raise


def _batches(arguments: argparse.Namespace, name: str) -> Iterable[wire.Batch]:
    files, project = arguments.files, arguments.project
    if all(file.suffix in SUFFIXES for file in files):
        return exported.Exported(exported.tables_of(files), name, project).batches()
    recorded = [each for file in files for each in events.event_files(file)]
    if recorded:
        return events.event_batches(recorded, name, project)
    if any(file.suffix == ".csv" for file in files):
        raise CannotImport("a CSV cannot be imported: export it as Parquet or JSON Lines")
    if len(files) > 1:
        raise CannotImport("pass one text log, or only exports, or only event files")
    return log_batches(read_log(files[0], arguments.log_of), name, project)
