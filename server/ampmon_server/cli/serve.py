"""``ampmon serve``: listens and serves until a signal stops it, or says in one line why it cannot start.

Without TLS, other machines cannot reach the server.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from ampmon import sender
from ampmon.errors import AmpmonError
from ampmon_server.cli import CANNOT
from ampmon_server.cli.serve_settings import settings_of
from ampmon_server.cli.workers import Workers, end_when_replaced
from ampmon_server.client.invitation import invitation
from ampmon_server.http import logs
from ampmon_server.http.address import address, address_written, listen
from ampmon_server.http.app import create_app
from ampmon_server.http.auth.keys import SECONDS, Keys
from ampmon_server.http.auth.tokens import Sessions
from ampmon_server.http.connection import raise_limit
from ampmon_server.http.process import ServerProcess
from ampmon_server.http.routes.auth import LOGIN_PATH
from ampmon_server.http.service import Service
from ampmon_server.pages import assets
from ampmon_server.settings import Settings
from ampmon_server.store import Store, StoreError


_log = logging.getLogger(__name__)


def run(arguments: argparse.Namespace) -> None:
    """Serve until stopped. Raises AmpmonError, which says what to do, if the server cannot start."""
    # What SQLite and libraries write beside the database is for its owner alone.
    os.umask(0o077)
    settings = settings_of(arguments)
    logs.set_up(settings.log_format)
    if (untested := assets.check_plotly()) is not None:
        _log.warning("%s", untested)
    raise_limit()
    try:
        with listen(settings) as listener:
            if arguments.workers == 1:
                _serve_alone(settings, listener, open_browser=arguments.open)
            else:
                _supervise(settings, listener, arguments.workers, open_browser=arguments.open)
    except OSError as error:
        if error.filename is None:  # its words alone do not say what failed
            _log.exception("ampmon serve failed")
        raise


def _serve_alone(settings: Settings, listener: socket.socket, *, open_browser: bool) -> None:
    with (
        closing(Service(settings)) as service,
        _reachable(
            service.keys, service.sessions, settings, listener, open_browser=open_browser
        ) as announce,
    ):
        process = ServerProcess(create_app(settings, service), ready=announce)
        with orphan_senders(settings.data_directory):
            process.run(sockets=[listener])


def _supervise(
    settings: Settings, listener: socket.socket, workers: int, *, open_browser: bool
) -> None:
    # Open both here first, so that an error is reported once and a new database is set up once.
    keys = Keys.load(settings.data_directory, settings.token_file)
    with (
        closing(Store.open(settings)) as store,
        _reachable(
            keys, Sessions(store), settings, listener, open_browser=open_browser
        ) as announce,
        Workers(_serve_as_worker, settings, listener, workers) as running,
    ):
        announce()
        with orphan_senders(settings.data_directory):
            running.keep()


def _serve_as_worker(settings: Settings, listener: socket.socket, line: Any, folder: str) -> None:
    """The main function of a worker. ``folder`` is its working directory: paths in the settings may be relative."""
    os.chdir(folder)
    logs.set_up(settings.log_format)
    try:
        service = Service(settings)
    except AmpmonError as problem:
        print(f"ampmon serve: {problem}", file=sys.stderr, flush=True)
        sys.exit(CANNOT)
    process = ServerProcess(create_app(settings, service), ready=lambda: line.send(True))
    threading.Thread(
        target=end_when_replaced, args=(process, line), name="ampmon-parent", daemon=True
    ).start()
    try:
        process.run(sockets=[listener])
    finally:
        service.close()


@contextmanager
def _reachable(
    keys: Keys,
    sessions: Sessions,
    settings: Settings,
    listener: socket.socket,
    *,
    open_browser: bool,
) -> Iterator[Callable[[], None]]:
    """Write the server's address and a link to it until it stops. Yield what tells the user of them."""
    place = address(listener, settings) + settings.base_path
    with (
        address_written(settings.address_file, place),
        _link(keys, sessions, place, open_browser=open_browser) as link,
        invitation(link, settings.server_directory) if open_browser else nullcontext() as opens,
    ):
        yield partial(_announce, place, link, opens)


@contextmanager
def _link(keys: Keys, sessions: Sessions, place: str, *, open_browser: bool) -> Iterator[str]:
    """Yield a sign-in link for one browser until the server stops, or the bare address if nobody would see the link."""
    if not (open_browser or _on_a_terminal()):
        yield place
        return
    code = keys.sign("code", seconds=SECONDS["cookie"])
    try:
        yield f"{place}{LOGIN_PATH}?code={code}"
    finally:
        with suppress(StoreError):
            sessions.revoke(code)


def _announce(place: str, link: str, opens: Callable[[], object] | None) -> None:
    if _on_a_terminal():
        print(f"ampmon is at {link} (this link signs one browser in)", flush=True)
    else:  # others may read a log, so it gets no sign-in link
        print(f"ampmon is at {place} (`ampmon token link` prints a sign-in link)", flush=True)
    if opens is not None:
        opens()


def _on_a_terminal() -> bool:
    """Whether output goes to a person's screen, and not to a file or log that others may read."""
    return sys.stdout is not None and sys.stdout.isatty()


EVERY_S = 30.0
_AT_MOST_S = 600.0


@contextmanager
def orphan_senders(directory: Path, every_s: float = EVERY_S) -> Iterator[None]:
    """Start a sender for records that dead processes left in the data directory, if there are any; look every 30 s.

    When a sender makes no progress, the log says so, and the next one starts later each time, after up to ten minutes.
    """
    stop = threading.Event()

    def adopt() -> None:
        pause_s = every_s
        before: dict[str, int] = {}
        while True:
            left = sender.orphans(directory)
            if left:
                sender.ensure_running(directory)
            stuck = bool(left) and left == before
            if stuck and pause_s == every_s:
                _log.warning(
                    "The records of ended processes in %s (%d) cannot be sent: run `ampmon sync` to see why",
                    directory / "spool",
                    len(left),
                )
            pause_s = min(2 * pause_s, _AT_MOST_S) if stuck else every_s
            before = left
            if stop.wait(pause_s):
                return

    threading.Thread(target=adopt, name="ampmon-adopting", daemon=True).start()
    try:
        yield
    finally:
        stop.set()
