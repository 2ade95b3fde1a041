"""One server process: uvicorn, ended on a signal without being killed by it, its streams of news first."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import uvicorn

from ampmon_server.app import create_app
from ampmon_server.auth.proxies import Proxies
from ampmon_server.connection import HEAD_BYTES_MAX, Connection
from ampmon_server.service import Service


STOP_SECONDS = 3


class Process(uvicorn.Server):
    """Serves an open service; ``ready`` is called once it does."""

    def __init__(self, service: Service, ready: Callable[[], None] | None = None) -> None:
        settings = service.settings
        super().__init__(
            uvicorn.Config(
                create_app(settings, service),
                http=partial(  # type: ignore[arg-type]  # it is called, and no more
                    Connection,
                    proxies=Proxies(settings.behind_proxy),
                    head_seconds_max=settings.head_seconds_max,
                ),
                h11_max_incomplete_event_size=HEAD_BYTES_MAX,
                proxy_headers=False,  # the guard knows whose count
                log_config=None,  # its lines go where the others go
                log_level="error",  # it warns of each request that is none, however many strangers send
                access_log=False,  # it would print the codes of one-time links
                ws="none",
                server_header=False,
                timeout_graceful_shutdown=STOP_SECONDS,
            )
        )
        self._service = service
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._service.certificate is not None:
            self.config.ssl = self._service.certificate.context
        await super().startup(sockets)
        if self.started and self._ready is not None:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.bus.close()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on a signal and return; uvicorn's own would raise it again, past all tidying up."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self.handle_exit)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
