"""Bugs to plant, to see that the matrix finds them: each breaks one promise, in the part that runs it only."""

from __future__ import annotations

from typing import Any

from ampmon import wire
from ampmon.errors import Unreachable
from ampmon_server.store.streams import ledger
from campaigns.faults import hostile


class AcknowledgesBeforeCommit:
    """An app that answers an ingest at once, and stores it afterwards."""

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
    """A transport after which the cursor moves whether or not there was an answer."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def send(self, batch: bytes, records: int) -> wire.Ack:
        try:
            return self._inner.send(batch, records)
        except Unreachable:
            return wire.Ack(acked={})

    def close(self) -> None:
        self._inner.close()


def store_whatever_comes() -> None:
    """The ledger forgets what it holds already."""
    ledger.LedgerView.unknown = lambda self, share: share  # type: ignore[method-assign]
