"""Options of `ampmon serve` for TLS, load balancers, proxies and frames.

They are checked at the start, because a mistake would otherwise show only in a browser.
"""

from __future__ import annotations

import argparse
import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path

from ampmon_server.cli.limits import amount


_HEADER = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)
SCOPES = ("ingest", "read", "admin")
_SEGMENT = re.compile(r"(?!\.{1,2}$)[\w.~@-]+", re.ASCII)
_ORIGIN = re.compile(
    r"https?://(\*\.)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:(\d{1,5}|\*))?", re.IGNORECASE
)
_HOST = re.compile(
    r"(\[[0-9a-f:.]+\]|[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?\.?)(:\d{1,5})?", re.ASCII | re.IGNORECASE
)
_SELF = "self"


class BadAddress(Exception):
    """An option holds no valid address, path, header or origin. The message shows what one looks like."""


def add_arguments(serve: argparse.ArgumentParser) -> None:
    serve.add_argument(
        "--drain",
        type=amount,
        default=0.0,
        metavar="SECONDS",
        help="time to keep serving after a stop signal, while /readyz reports the stop (%(default)g)",
    )
    serve.add_argument(
        "--tls-cert", type=Path, metavar="FILE", help="the server's own certificate, as PEM"
    )
    serve.add_argument("--tls-key", type=Path, metavar="FILE", help="its key, as PEM")
    serve.add_argument(
        "--behind-proxy",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="address or network of a proxy that terminates TLS; other machines may not connect (repeatable)",
    )
    _add_people(serve)
    serve.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="another host name to accept in requests, such as the proxy's (repeatable)",
    )
    serve.add_argument(
        "--base-path",
        default="",
        metavar="PATH",
        help="path under which a proxy serves ampmon, such as /user/me/ampmon",
    )
    serve.add_argument(
        "--frame-ancestors",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="origin whose pages may show ampmon in a frame, such as https://hub.example (repeatable)",
    )
    serve.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="site whose scripts may call the API with a token, such as https://hub.example (repeatable)",
    )


def _add_people(serve: argparse.ArgumentParser) -> None:
    """Options for users that a proxy has signed in: how it names them, and what they may do."""
    serve.add_argument(
        "--trust-user-header",
        metavar="HEADER",
        help="header in which the proxy names the signed-in user, such as X-Forwarded-User (none)",
    )
    serve.add_argument(
        "--user-scope",
        action="append",
        choices=SCOPES,
        help="scope of those users (repeatable; read and ingest)",
    )
    serve.add_argument(
        "--user-project",
        action="append",
        metavar="PROJECT",
        help="project that those users see and write (repeatable; all)",
    )


def addresses(given: Sequence[str]) -> tuple[str, ...]:
    """The addresses and networks, each item a comma-separated list. Raises BadAddress."""
    return tuple(_network(each) for listed in given for each in listed.split(","))


def _network(given: str) -> str:
    try:
        network = ipaddress.ip_network(given.strip())
    except ValueError:
        network = None
    if network is None or network.prefixlen == 0:
        raise BadAddress(
            f"--behind-proxy {given}: write the proxy's address, such as 10.0.0.2, or its network, such as 10.0.0.0/28"
        )
    return str(network)


def user_header(given: str | None, proxies: Sequence[str]) -> str | None:
    """The name of the header. It needs the proxy that may send it in ``proxies``. Raises BadAddress."""
    if given is None:
        return None
    if not proxies:
        raise BadAddress(
            f"--trust-user-header {given}: name the proxy that sends it with --behind-proxy, "
            "127.0.0.1 if it runs on this machine; ampmon ignores the header from other senders"
        )
    if not _HEADER.fullmatch(given):
        raise BadAddress(f"--trust-user-header {given}: write a header such as X-Forwarded-User")
    return given


def hosts(given: Sequence[str]) -> tuple[str, ...]:
    """The names as in a Host header, which alone would match them. Raises BadAddress."""
    for each in given:
        if not _HOST.fullmatch(each):
            raise BadAddress(
                f"--allow-host {each}: write one host name, such as ampmon.example, or an address, such as 10.0.0.2 "
                "or [::1]"
            )
    return tuple(given)


def base_path(given: str) -> str:
    """The path with a leading slash and no trailing one, or "". Raises BadAddress."""
    parts = given.strip("/").split("/")
    if parts == [""]:
        return ""
    if not all(_SEGMENT.fullmatch(part) for part in parts):
        raise BadAddress(f"--base-path {given}: write a path such as /user/me/ampmon")
    return "/" + "/".join(parts)


def frame_ancestors(given: Sequence[str]) -> tuple[str, ...]:
    """The origins in the syntax of a Content-Security-Policy. Raises BadAddress."""
    return tuple(_ancestor(each) for each in given)


def origins(given: Sequence[str]) -> tuple[str, ...]:
    """The origins as a browser sends them. Raises BadAddress."""
    for each in given:
        if "*" in each or not _ORIGIN.fullmatch(each):
            raise BadAddress(
                f"--allow-origin {each}: write one origin, such as https://hub.example"
            )
    return tuple(each.lower() for each in given)


def _ancestor(given: str) -> str:
    if given.strip("'") == _SELF:
        return f"'{_SELF}'"
    if not _ORIGIN.fullmatch(given.rstrip("/")):
        raise BadAddress(
            f"--frame-ancestors {given}: write an origin such as https://hub.example, or self"
        )
    return given.rstrip("/")
