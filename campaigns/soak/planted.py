"""A server with a bug that the soak must find: it acknowledges batches half a second before it stores them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

from ampmon import wire
from ampmon_server.background.writer import Writer
from ampmon_server.store import Receipt


_EARLY_S = 0.5


class _EarlyWriter(Writer):
    async def run(self, function: Callable[[], object], *more: object) -> object:  # type: ignore[override]
        asyncio.get_running_loop().call_later(_EARLY_S, self._executor.submit, function)
        return Receipt(wire.Ack(acked={})), UUID(int=0)


def plant() -> None:
    Writer.run = _EarlyWriter.run  # type: ignore[method-assign,assignment]
