"""A program that sends one message through Apprise: JSON on stdin, how it went as JSON on stdout. Loads no server.

It is a process of its own, so that a receiver that hangs or a plugin that fails takes nothing else with it, and so that
what may be connected to is decided where connections are made: for every plugin, whatever a name resolves to.
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
"""After so long it is ended, from outside or by itself where nobody is left to do it."""

_CONNECTS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
_RUNS = frozenset({"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn"})
_STATUS = re.compile(r"\berror=(\d{3})\b")
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Hook = Callable[[str, tuple[Any, ...]], None]


def is_public(address: Any) -> bool:
    """Whether a socket's address is one of the Internet's. A name, or a path of this machine, is none."""
    try:
        given = ipaddress.ip_address(str(address[0]).partition("%")[0])
    except (ValueError, TypeError, IndexError, KeyError):
        return False
    return all(_is_global(each) for each in (given, *_within(given)))


def _is_global(given: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    if isinstance(given, ipaddress.IPv6Address) and given not in _NAT64:
        # The standard library lists what is not global, and there may be more of it: site-local addresses, say.
        return given in _GLOBAL_UNICAST and given.is_global
    return given.is_global and not given.is_multicast


def _within(
    given: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> list[ipaddress.IPv4Address]:
    """The addresses of the older Internet that stand in one of the newer."""
    if isinstance(given, ipaddress.IPv4Address):
        return []
    found = [given.ipv4_mapped, given.sixtofour, *(given.teredo or ())]
    if given in _NAT64:
        found.append(ipaddress.IPv4Address(int(given) & 0xFFFFFFFF))
    return [each for each in found if each is not None]


def guarding(met: list[str], *, allow_private: bool) -> Hook:
    """An audit hook that lets no program run and, unless allowed, no private address be reached; ``met`` notes it."""

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _RUNS:
            raise PermissionError("no program is run for a message")
        if event in _CONNECTS and not allow_private:
            address = arguments[1]
            if address is not None and not is_public(address):
                met.append("private")
                raise PermissionError("this address is private")

    return audit


class _Said(logging.Handler):
    """Keeps of what Apprise says the status that it was answered; the words may hold more than others should know."""

    def __init__(self) -> None:
        super().__init__()
        self.status: int | None = None

    def emit(self, record: logging.LogRecord) -> None:
        found = _STATUS.search(record.getMessage())
        if found is not None:
            self.status = int(found[1])


def send(order: dict[str, Any], met: list[str]) -> dict[str, Any]:
    """Send what is asked for; what came of it: `trouble`, null for none, and the `status` that was answered."""
    try:
        import apprise
    except ModuleNotFoundError:
        return {"trouble": "missing", "status": None}
    said = _Said()
    logging.getLogger("apprise").addHandler(said)
    asset = apprise.AppriseAsset(
        app_id="ampmon",
        app_desc="ampmon",
        http_redirects=False,
        storage_mode="memory",
        async_mode=False,
        allow_templates=False,
        service_timeout=DEADLINE_S,
    )
    service = apprise.Apprise.instantiate(order["url"], asset=asset)
    if service is None:
        return {"trouble": "unusable", "status": None}
    sent = apprise.Apprise([service], asset=asset).notify(
        body=order["body"],
        title=order["title"],
        notify_type=order["kind"],
        body_format=apprise.NotifyFormat.TEXT,
    )
    return {"trouble": None if sent else _trouble(met, said.status), "status": said.status}


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
    os.dup2(2, 1)  # what a plugin prints is no answer
    order, met = json.load(sys.stdin), []  # type: tuple[dict[str, Any], list[str]]
    sys.addaudithook(guarding(met, allow_private=order["allow_private"]))
    with answer:
        json.dump(send(order, met), answer)


if __name__ == "__main__":
    main()
