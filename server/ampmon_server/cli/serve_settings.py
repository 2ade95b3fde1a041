"""Turns the options of `ampmon serve` into its settings.

They are checked at the start, because a mistake would otherwise show only in a browser.
"""

from __future__ import annotations

import argparse
import ipaddress
import math
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from typing import Any

from ampmon.config import data_directory
from ampmon.errors import ConfigurationError
from ampmon_server.alerting.targets import Alerts, read
from ampmon_server.background.forwarding.forwarder import opened
from ampmon_server.cli.server_options import NEVER
from ampmon_server.http.certificate import Certificate
from ampmon_server.model.thresholds import Levels, Thresholds
from ampmon_server.settings import Settings


_HEADER = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)
_PATH = re.compile(r"(/(?!\.{1,2}(/|$))[\w.~@-]+)*", re.ASCII)
_ORIGIN = re.compile(
    r"https?://(\*\.)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:(\d{1,5}|\*))?", re.IGNORECASE
)
_ONE_ORIGIN = re.compile(rf"(?!.*\*){_ORIGIN.pattern}", re.IGNORECASE)
_HOST = re.compile(
    r"(\[[0-9a-f:.]+\]|[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?\.?)(:\d{1,5})?", re.ASCII | re.IGNORECASE
)


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Check the options, and return the settings with the certificate's host names. Raises AmpmonError."""
    settings = _settings(arguments)
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise ConfigurationError("--tls-cert and --tls-key: pass both, the certificate and its key")
    certificate = Certificate.of(settings)
    names = () if certificate is None else certificate.names
    _check_workers(settings, arguments.workers)
    return replace(settings, allowed_hosts=(*settings.allowed_hosts, *names))


def _settings(arguments: argparse.Namespace) -> Settings:
    opened(arguments.forward)
    behind = addresses(arguments.behind_proxy)
    people = arguments.user_project
    directory = (arguments.data_dir or data_directory()).expanduser().absolute()
    return Settings(
        data_directory=directory,
        database_url=arguments.database_url,
        token_file=arguments.token_file,
        host=arguments.host,
        port=arguments.port,
        keep_rows_days=arguments.keep_rows_days,
        keep_samples_days=arguments.keep_samples_days,
        allowed_hosts=hosts(arguments.allow_host),
        tls_cert=arguments.tls_cert,
        tls_key=arguments.tls_key,
        behind_proxy=behind,
        user_header=user_header(arguments.trust_user_header, behind),
        user_scopes=tuple(arguments.user_scope or Settings(data_directory=directory).user_scopes),
        user_projects=tuple(people) if people else None,
        base_path=base_path(arguments.base_path),
        allowed_origins=origins(arguments.allow_origin),
        frame_ancestors=frame_ancestors(arguments.frame_ancestors),
        requests_per_s=arguments.requests_per_second,
        streams_per_token_max=arguments.streams_per_token,
        thresholds=thresholds_of(arguments.threshold),
        judging=not arguments.no_judging,
        drain_seconds=arguments.drain,
        idle_seconds_max=_idle_seconds(arguments),
        alerts=_alerts(arguments),
        forward=tuple(arguments.forward),
        run_metrics=arguments.run_metrics,
        log_format=arguments.log_format,
    )


def _idle_seconds(arguments: argparse.Namespace) -> float | None:
    if arguments.stop_when_idle is None:
        return None
    if arguments.workers > 1 or not arguments.stop_when_idle > 0:
        raise ConfigurationError(
            "--stop-when-idle needs more than 0 minutes and a single server process"
        )
    return float(arguments.stop_when_idle) * 60


def _alerts(arguments: argparse.Namespace) -> Alerts | None:
    if arguments.alerts is None:
        if arguments.public_url is not None:
            raise ConfigurationError(
                "--public-url is for the links in alerts: pass --alerts FILE too"
            )
        return None
    if arguments.no_judging:
        raise ConfigurationError(
            "--alerts sends findings, and --no-judging turns them off: pass only one of the two"
        )
    return read(arguments.alerts.expanduser(), arguments.public_url)


def _check_workers(settings: Settings, workers: int) -> None:
    if workers > 1 and (settings.database_url or "sqlite").startswith("sqlite"):
        raise ConfigurationError(
            f"--workers {workers}: SQLite allows one server process; several need PostgreSQL: "
            "--database-url postgresql+psycopg://user@host/ampmon"
        )


def addresses(given: Sequence[str]) -> tuple[str, ...]:
    """The addresses and networks, each item a comma-separated list. Raises ConfigurationError."""
    return tuple(_network(each) for listed in given for each in listed.split(","))


def _network(given: str) -> str:
    with suppress(ValueError):
        network = ipaddress.ip_network(given.strip())
        # A network of all addresses would let anyone set the headers of a proxy.
        if network.prefixlen > 0:
            return str(network)
    raise ConfigurationError(
        f"--behind-proxy {given}: write the proxy's address, such as 10.0.0.2, or its network, such as 10.0.0.0/28"
    )


def user_header(given: str | None, proxies: Sequence[str]) -> str | None:
    """The name of the header. It needs the proxy that may send it in ``proxies``. Raises ConfigurationError."""
    if given is None:
        return None
    if not proxies:
        raise ConfigurationError(
            f"--trust-user-header {given}: name the proxy that sends it with --behind-proxy, "
            "127.0.0.1 if it runs on this machine; ampmon ignores the header from other senders"
        )
    return _like(_HEADER, "--trust-user-header", given, "a header such as X-Forwarded-User")


def hosts(given: Sequence[str]) -> tuple[str, ...]:
    """The names as in a Host header, which alone would match them. Raises ConfigurationError."""
    example = "one host name, such as ampmon.example, or an address, such as 10.0.0.2 or [::1]"
    return tuple(_like(_HOST, "--allow-host", each, example) for each in given)


def base_path(given: str) -> str:
    """The path with a leading slash and no trailing one, or "". Raises ConfigurationError."""
    path = given.strip("/")
    return _like(_PATH, "--base-path", path and f"/{path}", "a path such as /user/me/ampmon")


def frame_ancestors(given: Sequence[str]) -> tuple[str, ...]:
    """The origins in the syntax of a Content-Security-Policy. Raises ConfigurationError."""
    example = "an origin such as https://hub.example, or self"
    return tuple(
        "'self'"
        if each.strip("'") == "self"
        else _like(_ORIGIN, "--frame-ancestors", each.rstrip("/"), example)
        for each in given
    )


def origins(given: Sequence[str]) -> tuple[str, ...]:
    """The origins as a browser sends them. Raises ConfigurationError."""
    example = "one origin, such as https://hub.example"
    return tuple(_like(_ONE_ORIGIN, "--allow-origin", each, example).lower() for each in given)


def _like(pattern: re.Pattern[str], flag: str, given: str, example: str) -> str:
    if not pattern.fullmatch(given):
        raise ConfigurationError(f"{flag} {given}: write {example}")
    return given


def thresholds_of(given: Iterable[str]) -> Thresholds:
    """The default thresholds, overridden by ``given``. Raises ConfigurationError."""
    thresholds = Thresholds()
    for each in given:
        thresholds = _changed(thresholds, each)
    for name, levels in asdict(thresholds).items():
        known = (
            [level for level in levels if level is not None] if isinstance(levels, Levels) else []
        )
        if known != sorted(known):
            shown = ", ".join(NEVER if level is None else f"{level:g}" for level in levels)
            raise ConfigurationError(
                f"--threshold {name}: {shown} do not rise from notice to critical"
            )
    return thresholds


def _changed(thresholds: Thresholds, given: str) -> Thresholds:
    place, _, text = given.partition("=")
    name, _, level = place.strip().partition(".")
    known = {field.name: getattr(thresholds, field.name) for field in fields(thresholds)}
    if (before := known.get(name)) is None:
        why = f"no threshold is called {name!r}; there are {', '.join(known)}"
        raise ConfigurationError(f"--threshold {given}: {why}")
    if not isinstance(before, Levels):
        if level:
            why = f"{name} has no levels; write {name}={before}"
            raise ConfigurationError(f"--threshold {given}: {why}")
        changed: Any = {name: _number(given, text, whole=isinstance(before, int))}
        return replace(thresholds, **changed)
    if level not in Levels._fields:
        why = f"write {name}.notice, {name}.warning or {name}.critical"
        raise ConfigurationError(f"--threshold {given}: {why}")
    value = None if text.strip() == NEVER else _number(given, text)
    changed = {name: before._replace(**{level: value})}
    return replace(thresholds, **changed)


def _number(given: str, text: str, *, whole: bool = False) -> float:
    try:
        value: float = int(text) if whole else float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        kind = "a whole number" if whole else "a number"
        raise ConfigurationError(f"--threshold {given}: {text!r} is not {kind} of at least 0")
    return value
