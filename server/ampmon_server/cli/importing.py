"""``ampmon import``: stores exports, text logs and TensorBoard event files as new runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ampmon_server.cli.doctor import FRAMEWORKS
from ampmon_server.cli.exits import CANNOT, reason
from ampmon_server.cli.which import add_server


if TYPE_CHECKING:
    from ampmon import wire


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="the files of one run: exports, a text log, event files or their folder",
    )
    parser.add_argument("--name", help="the new run's name (the file's)")
    parser.add_argument("--project", default="imported", help="its project (%(default)s)")
    parser.add_argument("--log-of", choices=FRAMEWORKS, help="the framework that wrote a text log")
    add_server(parser)


def run(arguments: argparse.Namespace) -> int:
    """Store the files as a new run and print its name. Return 0, or 2 if that fails."""
    from ampmon.errors import AmpmonError
    from ampmon.system.installing import install
    from ampmon.system.plain import plain
    from ampmon_server.client import ClientError, answering
    from ampmon_server.exchange.sending import name_of, send

    name = arguments.name or name_of(arguments.files[0])
    try:
        with answering(arguments.url, arguments.data_dir, arguments.token_file) as server:
            batches = _batches(arguments, name)
            records = send(server.url, server.token, batches)
    except ModuleNotFoundError as missing:
        if missing.name not in {"pyarrow", "tensorboard"}:
            raise
        why = f"these files need {missing.name}: {install('files')}"
    except (ClientError, AmpmonError, OSError, ValueError) as error:
        why = reason(error)
    else:
        print(f"{plain(name)}: {records:,} records, in the project {plain(arguments.project)}")
        return 0
    print(f"ampmon import: {why}", file=sys.stderr)
    return CANNOT


def _batches(arguments: argparse.Namespace, name: str) -> Iterable[wire.Batch]:
    from ampmon_server.exchange import events, exported
    from ampmon_server.exchange.logs import CannotImport, read_log
    from ampmon_server.exchange.sending import log_batches

    files, project = arguments.files, arguments.project
    if all(file.suffix in exported.SUFFIXES for file in files):
        return exported.Exported(exported.tables_of(files), name, project).batches()
    recorded = [each for file in files for each in events.event_files(file)]
    if recorded:
        return events.event_batches(recorded, name, project)
    if any(file.suffix == ".csv" for file in files):
        raise CannotImport("a CSV cannot be imported: export it as Parquet or JSON Lines")
    if len(files) > 1:
        raise CannotImport("name one text log, or only exports, or only event files")
    return log_batches(read_log(files[0], arguments.log_of), name, project)
