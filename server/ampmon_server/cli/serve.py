"""``ampmon serve``: opens what is needed, or says in one line why not; listens; stops cleanly on a signal."""

from __future__ import annotations

import argparse
import ipaddress
import signal
import socket
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn

from ampmon import sender
from ampmon.config import data_directory
from ampmon_server.app import create_app
from ampmon_server.auth import KeyProblem
from ampmon_server.service import Service
from ampmon_server.settings import Settings
from ampmon_server.store import Unusable


STOP_SECONDS = 3
CANNOT_START = 2


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop; 0 then, and 2, with one line that says what to do, where it cannot start."""
    settings = Settings(
        data_directory=(arguments.data_dir or data_directory()).expanduser().absolute(),
        database_url=arguments.database_url,
        host=arguments.host,
        port=arguments.port,
        keep_rows_days=arguments.keep_rows_days,
        keep_samples_days=arguments.keep_samples_days,
    )
    try:
        listener = _listen(settings)
        service = Service.open(settings)
    except (_CannotListen, KeyProblem, Unusable) as problem:
        print(f"ampmon serve: {problem}", file=sys.stderr)
        return CANNOT_START
    try:
        _serve(settings, service, listener, open_browser=arguments.open)
    finally:
        service.close()
        listener.close()
    return 0


class _CannotListen(Exception):
    """The address cannot be listened on; the message says what to do."""


def _listen(settings: Settings) -> socket.socket:
    if not 0 <= settings.port <= 65535:  # which getaddrinfo would take for another
        raise _CannotListen(
            f"--port {settings.port}: a port is at most 65535; 0 takes any that is free"
        )
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
    except (OSError, OverflowError) as error:
        raise _CannotListen(f"--host {settings.host} --port {settings.port}: {error}") from None
    family, *_, address = found[0]
    if not ipaddress.ip_address(address[0]).is_loopback:
        raise _CannotListen(
            f"--host {settings.host} would be reachable from other machines, and this version speaks no TLS: "
            "listen on 127.0.0.1, and forward it with ssh -L"
        )
    # asyncio turns off Nagle's delay, 40 ms an answer, only where the protocol is named.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise _CannotListen(
            f"port {settings.port} of {settings.host} cannot be used ({error.strerror}): "
            "stop what uses it, or name another --port (0 for any)"
        ) from None
    return listener


def _serve(
    settings: Settings, service: Service, listener: socket.socket, *, open_browser: bool
) -> None:
    url = _url(listener)
    config = uvicorn.Config(
        create_app(settings, service),
        log_level="warning",
        access_log=False,  # it would print the codes of one-time links
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    with _address_written(settings, url):
        _Server(config, service, url, open_browser=open_browser).run(sockets=[listener])


class _Server(uvicorn.Server):
    """uvicorn, saying where it is once it listens, and ending the streams of news before it waits for the others."""

    def __init__(
        self, config: uvicorn.Config, service: Service, url: str, *, open_browser: bool
    ) -> None:
        super().__init__(config)
        self._service = service
        self._url = url
        self._open_browser = open_browser

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.started:
            return
        link = f"{self._url}/login?code={self._service.logins.new(expires=False)}"
        print(f"ampmon is at {link} (this link lets one browser in)", flush=True)
        _adopt_spools(self._service.settings.data_directory)
        if self._open_browser:
            webbrowser.open(link)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.bus.close()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on a signal and return; uvicorn's own would raise it again, past all tidying up."""
        before = {
            number: signal.signal(number, self.handle_exit)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _adopt_spools(directory: Path) -> None:
    """Have delivered what processes that died have left in this data directory."""
    with suppress(OSError):
        if any((directory / "spool").iterdir()):
            sender.ensure_running(directory)


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def _address_written(settings: Settings, url: str) -> Iterator[None]:
    """Leave the address where `ampmon token` finds it, as long as the server is there."""
    path = settings.address_file
    path.write_text(url + "\n")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
