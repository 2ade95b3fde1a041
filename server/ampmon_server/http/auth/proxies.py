"""Trusted proxies in front of the server, by address: which clients may connect, and which forwarded headers count."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from ampmon_server.http.problems import problem


_PROTO = "x-forwarded-proto"
# No comma: some proxies join two headers with one.
_NAME = re.compile(r"[!-+\--~]([ -+\--~]{0,254}[!-+\--~])?", re.ASCII)


class Proxies:
    """The proxies at ``named``, addresses or networks. This machine's own programs may connect without being named.

    If none is named, any client may connect: the server then listens on the loopback interface or uses TLS itself.
    """

    def __init__(self, named: Sequence[str], user_header: str | None = None) -> None:
        self._named = tuple(ipaddress.ip_network(each) for each in named)
        self._user_header = user_header

    def admits(self, address: str | None) -> bool:
        """Whether to accept a connection from this address; None for a socket without an address."""
        return not self._named or self._is_named(address) or _is_loopback(address)

    def _is_named(self, address: str | None) -> bool:
        found = parsed(address)
        return found is not None and any(found in each for each in self._named)

    def user(self, scope: Scope, headers: Headers) -> str | None:
        """The user that a proxy names as signed in there: None if it names nobody, "" if its header is invalid.

        Only the header of a named proxy counts. This machine's own programs must be named for that, too.
        """
        if self._user_header is None or not self._is_named(_peer(scope)):
            return None
        names = headers.getlist(self._user_header)
        if not names:
            return None
        return names[0] if len(names) == 1 and _NAME.fullmatch(names[0]) else ""

    def heed(self, scope: Scope) -> Response | None:
        """Set the request's scheme to that of the client's connection to its proxy.

        Return an error response if proxies are named and the request reached its proxy without TLS, else None.
        """
        peer, headers = _peer(scope), Headers(scope=scope)
        schemes = headers.getlist(_PROTO)
        if _is_loopback(peer) and not self._is_from_proxy(peer, headers):
            if schemes in (["http"], ["https"]):
                scope["scheme"] = schemes[0]
            return None
        if not self._named:
            return None
        # The scheme between proxy and server says nothing about the scheme between client and proxy.
        scope["scheme"] = "https" if schemes == ["https"] and self._is_named(peer) else "http"
        if scope["scheme"] == "https":
            return None
        return problem(
            403, "Connect to the proxy over https. It must send X-Forwarded-Proto: https."
        )

    def _is_from_proxy(self, peer: str | None, headers: Headers) -> bool:
        """Whether a request comes through a named proxy. Other programs at its address do not add these headers."""
        added = _PROTO in headers or (
            self._user_header is not None and self._user_header in headers
        )
        return added and self._is_named(peer)


def _peer(scope: Scope) -> str | None:
    client: tuple[str, int] | None = scope.get("client")
    return None if client is None else client[0]


def _is_loopback(address: str | None) -> bool:
    found = parsed(address)
    return found is not None and found.is_loopback


def parsed(address: str | None) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address, IPv4 also if a dual-stack socket shows it mapped to IPv6; None for what is none."""
    try:
        found = ipaddress.ip_address(address or "")
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found
