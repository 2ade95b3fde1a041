"""``ampmon serve``: listens and serves until a signal stops it, or says in one line why it cannot start."""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial

from ampmon_server.cli.listening import address, listen
from ampmon_server.cli.orphan_senders import OrphanSenders
from ampmon_server.cli.serve_settings import settings_of
from ampmon_server.cli.workers import Workers
from ampmon_server.client.invitation import Invitation, invitation
from ampmon_server.http import logs
from ampmon_server.http.address import address_written
from ampmon_server.http.app import create_app
from ampmon_server.http.auth.keys import Keys
from ampmon_server.http.auth.tokens import LOGIN_PATH, PRINTED_SECONDS, Logins
from ampmon_server.http.connection import raise_limit
from ampmon_server.http.process import ServerProcess
from ampmon_server.http.service import Service
from ampmon_server.pages import assets
from ampmon_server.settings import Settings
from ampmon_server.store import Busy, Store


_log = logging.getLogger(__name__)


def run(arguments: argparse.Namespace) -> None:
    """Serve until stopped. Raises AmpmonError, which says what to do, if the server cannot start."""
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
        _reachable(service.logins, settings, listener, open_browser=open_browser) as announce,
    ):
        process = ServerProcess(create_app(settings, service), ready=announce)
        with OrphanSenders(settings.data_directory):
            process.run(sockets=[listener])


def _supervise(
    settings: Settings, listener: socket.socket, workers: int, *, open_browser: bool
) -> None:
    # Open both here first, so that an error is reported once and a new database is set up once.
    Keys.load(settings.data_directory, settings.token_file)
    with (
        closing(Store.open(settings)) as store,
        _reachable(Logins(store), settings, listener, open_browser=open_browser) as announce,
        Workers(settings, listener, workers) as running,
    ):
        announce()
        with OrphanSenders(settings.data_directory):
            running.keep()


@contextmanager
def _reachable(
    logins: Logins, settings: Settings, listener: socket.socket, *, open_browser: bool
) -> Iterator[Callable[[], None]]:
    """Write the server's address and a link to it until it stops. Yield what tells the user of them."""
    url = address(listener, settings)
    place = url + settings.base_path
    with (
        address_written(settings.address_file, url),
        _link(logins, place, open_browser=open_browser) as link,
        invitation(link, settings.server_directory) if open_browser else nullcontext() as invited,
    ):
        yield partial(_announce, place, link, invited)


@contextmanager
def _link(logins: Logins, place: str, *, open_browser: bool) -> Iterator[str]:
    """Yield a sign-in link for one browser until the server stops, or the bare address if nobody would see the link."""
    if not (open_browser or _on_a_terminal()):
        yield place
        return
    code = logins.new(PRINTED_SECONDS)
    try:
        yield f"{place}{LOGIN_PATH}?code={code}"
    finally:
        with suppress(Busy):
            logins.withdraw(code)


def _announce(place: str, link: str, invited: Invitation | None) -> None:
    if _on_a_terminal():
        print(f"ampmon is at {link} (this link signs one browser in)", flush=True)
    else:  # others may read a log, so it gets no sign-in link
        print(f"ampmon is at {place} (`ampmon token link` prints a sign-in link)", flush=True)
    if invited is not None:
        invited.open()


def _on_a_terminal() -> bool:
    """Whether output goes to a person's screen, and not to a file or log that others may read."""
    return sys.stdout is not None and sys.stdout.isatty()
