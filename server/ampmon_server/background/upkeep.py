"""What a server does beside its requests: removes what is deleted, and prunes runs that are old. Knows no SQL."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from uuid import UUID

from ampmon_server.background.writer import QueueFull, Writer
from ampmon_server.settings import Settings
from ampmon_server.store import Due, Failures, Keep, Store, StoreError


FIRST_S, EVERY_S = 60.0, 3600.0
PAUSE = 1.0
"""Between two steps it rests so many times as long as the step took, for others to write."""

_log = logging.getLogger(__name__)


async def keep_pruned(settings: Settings, store: Store, writer: Writer) -> None:
    """Every hour, what the settings say; until it is cancelled."""
    keep = Keep(settings.keep_rows_days, settings.keep_samples_days)
    wait = FIRST_S
    while True:
        # Several server processes would otherwise do it at the same time.
        await asyncio.sleep(wait * random.uniform(0.5, 1.5))
        wait = EVERY_S
        try:
            await _sweep(store, writer, keep)
        except Exception as error:  # of any kind: nobody would see that this has ended
            _log.warning("Pruning goes on in an hour: %s", error, exc_info=_unforeseen(error))


async def _sweep(store: Store, writer: Writer, keep: Keep) -> None:
    due = await asyncio.to_thread(store.due, keep)
    # Else those that cannot be pruned would stand before the same others each time.
    random.shuffle(due)
    failures = Failures(_log_failure)
    for one in due:
        with failures.of(one):
            await _prune(store, writer, one)


async def _prune(store: Store, writer: Writer, due: Due) -> None:
    if not await asyncio.to_thread(store.left, due):
        return
    finding = await asyncio.to_thread(store.unsound, due)
    if finding is None:
        await drain(writer, store.prune(due))
    else:
        _log.warning("Not pruned: %s", finding)


def _log_failure(due: Due, error: Exception) -> None:
    _log.warning("Not pruned: run %s: %s", due.run_id, error, exc_info=_unforeseen(error))


def _unforeseen(error: Exception) -> Exception | None:
    return None if isinstance(error, StoreError) else error


async def clear(store: Store, writer: Writer, run_id: UUID) -> None:
    """Remove what is held of a deleted run; what is left undone here is done within the hour."""
    with suppress(StoreError):
        await drain(writer, store.clear(run_id))


async def drain(writer: Writer, steps: Iterator[int]) -> None:
    """Take step after step in the line of those who write, and let others before it. Raises what a step raises."""
    while True:
        begun = time.monotonic()
        with suppress(QueueFull):
            if await writer.run(lambda: next(steps, None)) is None:
                return
        await asyncio.sleep(PAUSE * (time.monotonic() - begun) + 0.001)
