"""Bugs to plant, to check that the matrix finds them. Each breaks one promise, in its part's process only."""

from __future__ import annotations

from typing import Any

from ampmon import wire
from ampmon.errors import Unreachable
from ampmon_server.store.ingest import ledger
from campaigns.faults import hostile


class AcknowledgesBeforeCommit:
    """An app that acknowledges an ingest first and stores it afterwards."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if not hostile.is_ingest(scope):
            await self._app(scope, receive, send)
            return
        body = await hostile.body_of(receive)
        await hostile.answer(send, 200, b'{"acked": {}}')
        await self._app(scope, hostile.replayed(body), hostile.nowhere)


class TakesSilenceForAcknowledgement:
    """A transport that acknowledges even without an answer, so the cursor moves."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def send(self, batch: bytes) -> wire.Ack:
        try:
            return self._inner.send(batch)
        except Unreachable:
            return wire.Ack(acked={})

    def close(self) -> None:
        self._inner.close()


def store_whatever_comes() -> None:
    """Make the ledger treat every record as new."""
    ledger.LedgerView.unknown = lambda self, share: share  # type: ignore[method-assign]
