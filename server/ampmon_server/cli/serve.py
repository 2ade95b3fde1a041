"""``ampmon serve``: listens and serves until a signal stops it, or says in one line why it cannot start."""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace

from ampmon.config import data_directory
from ampmon_server.alerting.targets import Alerts, BadAlerts, read
from ampmon_server.background.forwarding.forwarder import BadDestination, opened
from ampmon_server.cli import proxies
from ampmon_server.cli.listening import CannotListen, address, listening
from ampmon_server.cli.orphan_senders import OrphanSenders
from ampmon_server.cli.thresholds import BadThreshold, parse
from ampmon_server.cli.workers import Workers
from ampmon_server.client.invitation import Invitation, invitation
from ampmon_server.http import logs
from ampmon_server.http.address import address_written
from ampmon_server.http.auth.keys import KeyProblem, Keys
from ampmon_server.http.auth.tokens import LOGIN_PATH, PRINTED_SECONDS, Logins
from ampmon_server.http.certificate import BadCertificate, Certificate
from ampmon_server.http.connection import raise_limit
from ampmon_server.http.process import ServerProcess
from ampmon_server.http.service import Service
from ampmon_server.pages import assets
from ampmon_server.settings import Settings
from ampmon_server.store import Busy, Store, Unusable


CANNOT_START = 2
_log = logging.getLogger(__name__)


def run(arguments: argparse.Namespace) -> int:
    """Serve until stopped and return 0, or return 2 with a line that says what to do if the server cannot start."""
    os.umask(0o077)
    try:
        settings = _named(_settings(arguments))
        _check_workers(settings, arguments.workers)
        logs.set_up(settings.log_format)
        if (untested := assets.check_plotly()) is not None:
            _log.warning("%s", untested)
        raise_limit()
        with listening(settings) as listener:
            if arguments.workers == 1:
                _serve_alone(settings, listener, open_browser=arguments.open)
            else:
                _supervise(settings, listener, arguments.workers, open_browser=arguments.open)
    except _PROBLEMS as problem:
        print(f"ampmon serve: {problem}", file=sys.stderr)
        return CANNOT_START
    return 0


def _settings(arguments: argparse.Namespace) -> Settings:
    """Raises BadThreshold, BadAddress, BadAlerts, BadDestination and _CannotStart."""
    opened(arguments.forward)
    behind = proxies.addresses(arguments.behind_proxy)
    people = arguments.user_project
    return Settings(
        data_directory=(arguments.data_dir or data_directory()).expanduser().absolute(),
        database_url=arguments.database_url,
        token_file=arguments.token_file,
        host=arguments.host,
        port=arguments.port,
        keep_rows_days=arguments.keep_rows_days,
        keep_samples_days=arguments.keep_samples_days,
        allowed_hosts=proxies.hosts(arguments.allow_host),
        tls_cert=arguments.tls_cert,
        tls_key=arguments.tls_key,
        behind_proxy=behind,
        user_header=proxies.user_header(arguments.trust_user_header, behind),
        user_scopes=tuple(arguments.user_scope or Settings().user_scopes),
        user_projects=tuple(people) if people else None,
        base_path=proxies.base_path(arguments.base_path),
        allowed_origins=proxies.origins(arguments.allow_origin),
        frame_ancestors=proxies.frame_ancestors(arguments.frame_ancestors),
        requests_per_s=arguments.requests_per_second,
        streams_per_token_max=arguments.streams_per_token,
        streams_max=2 * arguments.streams_per_token,
        thresholds=parse(arguments.threshold),
        judging=not arguments.no_judging,
        drain_seconds=arguments.drain,
        idle_seconds_max=_idle_seconds(arguments),
        alerts=_alerts(arguments),
        forward=tuple(arguments.forward),
        run_metrics=arguments.run_metrics,
        log_format=arguments.log_format,
    )


def _idle_seconds(arguments: argparse.Namespace) -> float | None:
    """Raises _CannotStart."""
    if arguments.stop_when_idle is None:
        return None
    if arguments.workers > 1 or not arguments.stop_when_idle > 0:
        raise _CannotStart("--stop-when-idle needs more than 0 minutes and a single server process")
    return float(arguments.stop_when_idle) * 60


def _alerts(arguments: argparse.Namespace) -> Alerts | None:
    """Raises BadAlerts and _CannotStart."""
    if arguments.alerts is None:
        if arguments.public_url is not None:
            raise _CannotStart("--public-url is for the links in alerts: name --alerts FILE too")
        return None
    if arguments.no_judging:
        raise _CannotStart(
            "--alerts sends findings, and --no-judging turns them off: pass only one of the two"
        )
    return read(arguments.alerts.expanduser(), arguments.public_url)


def _named(settings: Settings) -> Settings:
    """Return the settings with the host names of the certificate added. Raises BadCertificate and _CannotStart."""
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise _CannotStart("--tls-cert and --tls-key: name both, the certificate and its key")
    certificate = Certificate.of(settings)
    names = () if certificate is None else certificate.names
    return replace(settings, allowed_hosts=(*settings.allowed_hosts, *names))


class _CannotStart(Exception):
    """The options cannot be satisfied. The message says what to do."""


_PROBLEMS = (
    _CannotStart,
    CannotListen,
    BadAlerts,
    BadDestination,
    assets.BadScript,
    BadThreshold,
    proxies.BadAddress,
    BadCertificate,
    KeyProblem,
    Unusable,
)


def _check_workers(settings: Settings, workers: int) -> None:
    if workers < 1:
        raise _CannotStart(f"--workers {workers}: must be at least 1")
    if workers > 1 and (settings.database_url or "sqlite").startswith("sqlite"):
        raise _CannotStart(
            f"--workers {workers}: SQLite allows one server process; several need PostgreSQL: "
            "--database-url postgresql+psycopg://user@host/ampmon"
        )


def _serve_alone(settings: Settings, listener: socket.socket, *, open_browser: bool) -> None:
    service = Service(settings)
    place = address(listener, settings) + settings.base_path
    try:
        with (
            address_written(settings.address_file, address(listener, settings)),
            _link(service.logins, place, open_browser=open_browser) as link,
            _to_open(link, settings, open_browser=open_browser) as invited,
        ):
            process = ServerProcess(service, ready=lambda: _announce(place, link, invited))
            with OrphanSenders(settings.data_directory):
                process.run(sockets=[listener])
    finally:
        service.close()


def _supervise(
    settings: Settings, listener: socket.socket, workers: int, *, open_browser: bool
) -> None:
    # Open both here first, so that an error is reported once and a new database is set up once.
    Keys.load(settings.data_directory, settings.token_file)
    store = Store.open(settings)
    place = address(listener, settings) + settings.base_path
    try:
        with (
            address_written(settings.address_file, address(listener, settings)),
            _link(Logins(store), place, open_browser=open_browser) as link,
            _to_open(link, settings, open_browser=open_browser) as invited,
            Workers(settings, listener, workers) as running,
        ):
            _announce(place, link, invited)
            with OrphanSenders(settings.data_directory):
                running.keep()
    finally:
        store.close()


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


def _to_open(
    link: str, settings: Settings, *, open_browser: bool
) -> AbstractContextManager[Invitation | None]:
    return invitation(link, settings.server_directory) if open_browser else nullcontext()


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
