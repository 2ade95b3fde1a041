"""A program that sends one message through Apprise: reads JSON from stdin, writes the outcome as JSON to stdout.

It is a separate process, so a receiver that hangs or a plugin that fails affects nothing else. It imports nothing of
the server. An audit hook checks each address as the process connects, for every plugin and after name resolution.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Callable
from typing import Any


DEADLINE_S = 30
"""Seconds until the parent process kills this one. If the parent is gone, an alarm ends this process 5 s later."""

_CONNECTS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
_RUNS = frozenset({"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn"})
_STATUS = re.compile(r"\berror=(\d{3})\b|\((\d{3}), b")
"""The status of an answer over HTTP, or of one of a mail server, in Apprise's log messages."""
_UNTRUSTED = "certificate verify failed"
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Hook = Callable[[str, tuple[Any, ...]], None]


def is_public(address: Any) -> bool:
    """Whether a socket address is a public Internet address. False for a name or the path of a local socket."""
    try:
        given = ipaddress.ip_address(str(address[0]).partition("%")[0])
    except (ValueError, TypeError, IndexError, KeyError):
        return False
    return all(_is_global(each) for each in (given, *_within(given)))


def _is_global(given: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    if isinstance(given, ipaddress.IPv6Address) and given not in _NAT64:
        # `is_global` excludes only the ranges it lists, and misses some non-global ones: site-local addresses.
        return given in _GLOBAL_UNICAST and given.is_global
    return given.is_global and not given.is_multicast


def _within(
    given: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> list[ipaddress.IPv4Address]:
    """The IPv4 addresses embedded in an IPv6 address: mapped, 6to4, Teredo and NAT64."""
    if isinstance(given, ipaddress.IPv4Address):
        return []
    found = [given.ipv4_mapped, given.sixtofour, *(given.teredo or ())]
    if given in _NAT64:
        found.append(ipaddress.IPv4Address(int(given) & 0xFFFFFFFF))
    return [each for each in found if each is not None]


def guarding(met: list[str], *, allow_private: bool) -> Hook:
    """Return an audit hook that blocks subprocesses and, unless allowed, connections to private addresses.

    It appends "private" to ``met`` for each connection it blocks.
    """

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _RUNS:
            raise PermissionError("no program is run for a message")
        if event in _CONNECTS and not allow_private:
            address = arguments[1]
            # A connected socket sends without an address, which was checked as it connected.
            if address is not None and not is_public(address):
                met.append("private")
                raise PermissionError("this address is private")

    return audit


class _Said(logging.Handler):
    """Keeps only a status from Apprise's log messages, and appends "untrusted" to ``met`` for a rejected certificate.

    Their text may contain secrets.
    """

    def __init__(self, met: list[str]) -> None:
        super().__init__()
        self.status: int | None = None
        self._met = met

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno == logging.DEBUG and not text.startswith("Socket Exception: "):
            return  # such as a payload, whose names may look like an error
        if found := _STATUS.search(text):
            self.status = int(found[1] or found[2])
        if _UNTRUSTED in text:
            self._met.append("untrusted")


def send(order: dict[str, Any], met: list[str]) -> tuple[str | None, int | None]:
    """Send a message. Return the trouble (None if it was sent) and the receiver's status (None if unknown)."""
    try:
        import apprise
    except ModuleNotFoundError:
        return "missing", None
    said = _Said(met)
    log = logging.getLogger("apprise")
    log.addHandler(said)
    log.setLevel(logging.DEBUG)
    asset = apprise.AppriseAsset(
        app_id="ampmon",
        app_desc="ampmon",
        http_redirects=False,
        storage_mode="memory",
        async_mode=False,
        allow_templates=False,
        service_timeout=DEADLINE_S,
    )
    url = order["url"]
    if url.lower().startswith("opsgenie:"):
        # Its other actions change alerts whose ids Apprise does not know in a new process: it would send nothing.
        url += f"{'&' if '?' in url else '?'}action=new"
    service = apprise.Apprise.instantiate(url, asset=asset)
    if service is None:
        return "unusable", None
    sent = apprise.Apprise([service], asset=asset).notify(
        body=order["body"],
        title=order["title"],
        notify_type=order["kind"],
        # Apprise would turn text into Markdown with backslashes, also in links, which then lead nowhere.
        body_format=None if service.notify_format == "markdown" else "text",
    )
    return None if sent else _trouble(met, said.status), said.status


def _trouble(met: list[str], status: int | None) -> str:
    if met:
        return met[0]
    if status is None:
        return "unreachable"
    return "redirect" if 300 <= status < 400 else "refused"


def main() -> None:
    if hasattr(signal, "alarm"):
        signal.alarm(DEADLINE_S + 5)
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps what plugins print out of the answer
    order, met = json.load(sys.stdin), []  # type: tuple[dict[str, Any], list[str]]
    sys.addaudithook(guarding(met, allow_private=order["allow_private"]))
    with answer:
        json.dump(send(order, met), answer)


if __name__ == "__main__":
    main()
