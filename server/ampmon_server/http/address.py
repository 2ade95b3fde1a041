"""Where a server listens, and the file in which it keeps its address, where commands and trainings find it."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ampmon.config import answers
from ampmon.errors import ConfigurationError
from ampmon.system import private
from ampmon_server.settings import Settings


@contextmanager
def address_written(path: Path, url: str) -> Iterator[None]:
    """Keep ``url`` in ``path`` during the block.

    Two servers with a database each may share a data directory. So leave the address of another one that was written
    meanwhile. Put back the one from before if that server still answers.
    """
    own, before = f"{url}\n".encode(), _read(path)
    private.replace(path, own, durable=False)
    try:
        yield
    finally:
        if _read(path) != own:
            pass
        elif before != own and answers(before.decode(errors="replace").strip()):
            private.replace(path, before, durable=False)
        else:
            path.unlink(missing_ok=True)


def _read(path: Path) -> bytes:
    try:
        return private.read(path)
    except OSError:
        return b""


def is_free(port: int) -> bool:
    """Whether a server could listen on a port of this machine. One that was released just now counts as free."""
    with socket.socket() as tried, suppress(OSError):
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tried.bind(("127.0.0.1", port))
        return True
    return False


def address(listener: socket.socket, settings: Settings) -> str:
    """The server's URL for users and programs, without its base path."""
    host, port = listener.getsockname()[:2]
    at = ipaddress.ip_address(host)
    named = settings.allowed_hosts[0] if settings.allowed_hosts else None
    if settings.tls_cert is not None:
        place = named or _bracketed(host)
        return f"https://{place}" if ":" in place.rpartition("]")[2] else f"https://{place}:{port}"
    if at.is_unspecified:  # the address for this machine: others connect through the proxy
        host = "::1" if at.version == 6 else "127.0.0.1"
    elif named is not None and not at.is_loopback:
        return f"https://{named}"
    return f"http://{_bracketed(host)}:{port}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def listen(settings: Settings) -> socket.socket:
    """Open a listening socket, to be closed by the caller. Raises ConfigurationError, which says what to do."""
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ConfigurationError(f"--host {settings.host}: it cannot be resolved") from None
    family, *_, place = found[0]
    beyond = not ipaddress.ip_address(place[0]).is_loopback
    if beyond and settings.tls_cert is None and not settings.behind_proxy:
        raise ConfigurationError(
            f"--host {settings.host} would be reachable by others without TLS: pass --tls-cert and --tls-key, "
            "or a proxy that ends TLS with --behind-proxy; or listen on 127.0.0.1, and forward it with ssh -L"
        )
    # Name the protocol: only then asyncio turns off Nagle's algorithm, which delays each answer by 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # Else a port stays taken for a minute after its server has stopped.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"port {settings.port} of {settings.host} cannot be used ({error.strerror}): "
            "stop the program that uses it, or pass another --port (0 for any). If it is ampmon, `ampmon token link` "
            "prints a link to its page"
        ) from None
    return listener
