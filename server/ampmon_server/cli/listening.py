"""The listening socket of `ampmon serve` and its URL. Without TLS other machines cannot reach the server."""

from __future__ import annotations

import ipaddress
import socket

from ampmon.errors import ConfigurationError
from ampmon_server.settings import Settings


def address(listener: socket.socket, settings: Settings) -> str:
    """The server's URL for users and programs, without its base path."""
    host, port = listener.getsockname()[:2]
    at = ipaddress.ip_address(host)
    named = settings.allowed_hosts[0] if settings.allowed_hosts else None
    if settings.tls_cert is not None:
        return f"https://{_with_port(named or _bracketed(host), port)}"
    if at.is_unspecified:  # the address for this machine: others connect through the proxy
        host = "::1" if at.version == 6 else "127.0.0.1"
    elif named is not None and not at.is_loopback:
        return f"https://{named}"
    return f"http://{_bracketed(host)}:{port}"


def _with_port(host: str, port: int) -> str:
    has_one = ":" in host.rpartition("]")[2]
    return host if has_one else f"{host}:{port}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def listen(settings: Settings) -> socket.socket:
    """Open a listening socket, to be closed by the caller. Raises ConfigurationError, which says what to do."""
    if not 0 <= settings.port <= 65535:  # getaddrinfo would wrap it to another port
        raise ConfigurationError(
            f"--port {settings.port}: a port is at most 65535; 0 picks a free one"
        )
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"--host {settings.host} --port {settings.port}: {error}"
        ) from None
    family, *_, place = found[0]
    beyond = not ipaddress.ip_address(place[0]).is_loopback
    if beyond and settings.tls_cert is None and not settings.behind_proxy:
        raise ConfigurationError(
            f"--host {settings.host} would be reachable by others without TLS: name --tls-cert and --tls-key, "
            "or a proxy that ends TLS with --behind-proxy; or listen on 127.0.0.1, and forward it with ssh -L"
        )
    # Name the protocol: only then asyncio turns off Nagle's algorithm, which delays each answer by 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"port {settings.port} of {settings.host} cannot be used ({error.strerror}): "
            "stop the program that uses it, or name another --port (0 for any)"
        ) from None
    return listener
