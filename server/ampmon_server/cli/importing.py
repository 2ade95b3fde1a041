"""``ampmon import``: stores exports, text logs and TensorBoard event files as new runs."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import suppress
from uuid import UUID

from ampmon import wire
from ampmon.system.installing import install
from ampmon.system.plain import plain
from ampmon_server.client import ApiClient, ClientError, answering
from ampmon_server.exchange import events, exported
from ampmon_server.exchange.logs import CannotImport, read_log
from ampmon_server.exchange.rows import SUFFIXES
from ampmon_server.exchange.sending import log_batches, name_of, send


def run(arguments: argparse.Namespace) -> None:
    """Store the files as a new run and print its name."""
    name = arguments.name or name_of(arguments.files[0])
    try:
        with answering.asked(arguments) as server:
            records = _send(server, _batches(arguments, name))
    except ModuleNotFoundError as missing:
        if missing.name not in {"pyarrow", "tensorboard"}:
            raise
        raise CannotImport(f"these files need {missing.name}: {install('files')}") from None
    except ValueError as error:  # the content of a file
        raise CannotImport(str(error)) from None
    print(f"{plain(name)}: {records:,} records, in the project {plain(arguments.project)}")


def _send(server: ApiClient, batches: Iterable[wire.Batch]) -> int:
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
        raise CannotImport("name one text log, or only exports, or only event files")
    return log_batches(read_log(files[0], arguments.log_of), name, project)
