"""Serves a data directory on a port of its own for as long as the doctor asks, where no server runs on it."""

from __future__ import annotations

import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import urllib3

from ampmon.errors import AmpmonError
from ampmon.sender.sync import Sync, spools_at
from ampmon.spool import Destination, spools
from ampmon.transport import HttpTransport
from ampmon_server.asking.client import Asking, Unanswered
from ampmon_server.auth import KeyProblem
from ampmon_server.process import Process
from ampmon_server.service import Service
from ampmon_server.settings import LOOPBACK, Settings
from ampmon_server.store import Unusable


START_S = 30.0


@contextmanager
def alone(settings: Settings) -> Iterator[Asking]:
    """A server that nobody else uses, with what waits for it in spools taken in. Raises Unanswered."""
    waiting = _waiting(settings.data_directory)
    if not waiting and not (settings.server_directory / "ampmon.db").exists():
        raise Unanswered(
            f"no server runs on {settings.data_directory}, and it holds no runs: name a --data-dir, or a server's --url"
        )
    try:
        service = Service.open(settings)
    except (KeyProblem, Unusable) as problem:
        raise Unanswered(str(problem)) from None
    try:
        with _served(service) as url, Asking(url, service.keys.token, lasts=False) as server:
            taken = _take_in(waiting, url, service.keys.token)
            print(
                f"no server runs on {settings.data_directory}: asked its database{taken}",
                file=sys.stderr,
            )
            yield server
    finally:
        service.close()


@contextmanager
def _served(service: Service) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ready = threading.Event()
        process = Process(service, ready=ready.set)
        thread = threading.Thread(target=process.run, args=([listener],), daemon=True)
        thread.start()
        try:
            if not ready.wait(START_S):
                raise Unanswered(
                    "the database was opened, and could not be served: start `ampmon serve`"
                )
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            process.should_exit = True
            thread.join()


def _waiting(directory: Path) -> list[Path]:
    """The spools that wait for a server on this machine, or for none."""
    try:
        return [path for path in spools(directory) if _is_ours(Destination.read(path))]
    except OSError:
        return []


def _is_ours(destination: Destination | None) -> bool:
    if destination is None:
        return False
    return destination.mode == "offline" or _host(destination.url) in LOOPBACK


def _host(url: str) -> str | None:
    return urllib3.util.parse_url(url).host


def _take_in(waiting: list[Path], url: str, token: str) -> str:
    """Store what lies in spools; how much, in words.

    The spools stay for whoever is to send them: a record that comes twice is stored once.
    """
    with tempfile.TemporaryDirectory(prefix="ampmon-asking-") as folder:
        for path in waiting:
            try:
                shutil.copytree(path, Path(folder) / "spool" / path.name)
            except (OSError, shutil.Error):
                continue  # its sender has just sent it
        sync = Sync(spools_at(Path(folder)) or [], lambda _: HttpTransport(url, token=token))
        try:
            problems = [each for each in sync.run() if each.problem is not None]
        except (AmpmonError, OSError) as error:
            return f" (what waits in spools was not taken in: {error})"
    left = f", {len(problems)} spools not whole" if problems else ""
    return f", with {sync.records:,} records that waited in spools{left}" if sync.records else left
