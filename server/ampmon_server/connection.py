"""One connection of uvicorn's, before it is a request: whose it may be, and how long its head may take to arrive."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import get_remote_addr

from ampmon_server.auth.proxies import Proxies


HEAD_BYTES_MAX = 64 * 1024
"""Of a request's line and headers together: 400 beyond."""


class Connection(H11Protocol):
    """Ends at once where ``proxies`` do not admit the other side, and where a head is not whole in its time.

    uvicorn itself would wait for a head for ever.
    """

    def __init__(self, *given: Any, proxies: Proxies, head_seconds_max: float, **more: Any) -> None:
        super().__init__(*given, **more)
        self._proxies = proxies
        self._head_seconds_max = head_seconds_max
        self._patience: asyncio.TimerHandle | None = None
        self._begun = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = get_remote_addr(transport)
        if not self._proxies.admits(None if peer is None else peer[0]):
            transport.abort()  # before a byte of theirs is read
            return
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._begun = self.conn.their_state is h11.IDLE
        if self._begun:
            self._wait()
        else:
            self._wait_no_more()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        if self.transport is not None:
            super().connection_lost(exc)

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing() and self.scheme == "https":
            self.transport.abort()  # nothing is under way; over TLS it would wait for a farewell

    def _wait(self) -> None:
        """For the rest of a head; after an answer it is uvicorn that waits, for the beginning of another."""
        if self._patience is None:
            self._patience = self.loop.call_later(self._head_seconds_max, self._lose_patience)

    def _wait_no_more(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _lose_patience(self) -> None:
        if self.transport.is_closing() or self.conn.our_state is not h11.IDLE:
            return
        if self._begun:
            self.send_400_response("The request did not arrive in time.")
        else:
            self.transport.close()
