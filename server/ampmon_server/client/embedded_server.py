"""Serves a data directory on a free port of 127.0.0.1 while a command runs, when no other server runs on it."""

from __future__ import annotations

import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from uuid import UUID

from ampmon_server.client.client import ApiClient, ClientError
from ampmon_server.client.spool_import import SpoolImport, waiting
from ampmon_server.http.address import address_written
from ampmon_server.http.auth.keys import KeyProblem
from ampmon_server.http.process import ServerProcess
from ampmon_server.http.service import Service
from ampmon_server.settings import Settings
from ampmon_server.store import NotFound, Store, Unusable


START_S = 30.0


@contextmanager
def alone(settings: Settings, *, announced: bool = False) -> Iterator[ApiClient]:
    """Start a server for one command, and import the records that wait for it in spools. Raises ClientError.

    With ``announced``, other commands can find and use it. They need it, because it locks the database file.
    """
    left = waiting(settings.data_directory)
    if not left and not settings.database_file.exists():
        raise ClientError(
            f"no server runs on {settings.data_directory}, and it holds no runs: record one with "
            "`ampmon run train.py`, or name a --data-dir, or a server's --url"
        )
    with (
        tempfile.TemporaryDirectory(prefix="ampmon-asking-") as folder,
        _serving(settings) as (service, server),
    ):
        known = partial(_has, service.store)
        directory = settings.data_directory
        spools = SpoolImport(directory, Path(folder), server.url, server.token, known)
        taken = spools.take()
        print(f"no server runs on {directory}: reading its database{taken}", file=sys.stderr)
        server.catch_up = spools.take
        with address_written(settings.address_file, server.url) if announced else nullcontext():
            yield server


def _has(store: Store, run_id: UUID) -> bool:
    try:
        store.run(run_id)
    except NotFound:
        return False
    return True


@contextmanager
def filled(fill: Callable[[str, str], object]) -> Iterator[ApiClient]:
    """Start a server on a temporary database, which ``fill`` fills, given the server's address and token.

    The database is deleted at the end.
    """
    with (
        tempfile.TemporaryDirectory(prefix="ampmon-asking-") as folder,
        _serving(Settings(data_directory=Path(folder) / "data", judging=False)) as (_, server),
    ):
        fill(server.url, server.token)
        yield server


@contextmanager
def _serving(settings: Settings) -> Iterator[tuple[Service, ApiClient]]:
    """A service and a client of it, while a thread serves it. Raises ClientError."""
    try:
        service = Service(settings)
    except (KeyProblem, Unusable) as problem:
        raise ClientError(str(problem)) from None
    with closing(service), socket.create_server(("127.0.0.1", 0)) as listener:
        ready = threading.Event()
        process = ServerProcess(service, ready=ready.set)
        thread = threading.Thread(target=process.run, args=([listener],), daemon=True)
        thread.start()
        try:
            if not ready.wait(START_S):
                raise ClientError(
                    "the temporary server for the database did not start: start `ampmon serve`"
                )
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            with ApiClient(url, service.keys.token, lasts=False) as server:
                yield service, server
        finally:
            process.should_exit = True
            thread.join()
