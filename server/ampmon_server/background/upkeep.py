"""Removes deleted runs and prunes old ones in the background. Contains no SQL."""

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
from ampmon_server.store.admin.prune import Failures, Keep, PruneCalls, PruneTask
from ampmon_server.store.engine.errors import StoreError


FIRST_S, EVERY_S = 60.0, 3600.0
PAUSE = 1.0
"""Pause between two steps, in multiples of the step's duration, so that other writers get a turn."""

_log = logging.getLogger(__name__)


async def keep_pruned(settings: Settings, store: PruneCalls, writer: Writer) -> None:
    """Every hour, prune as the settings say, until cancelled."""
    keep = Keep(settings.keep_rows_days, settings.keep_samples_days)
    wait = FIRST_S
    while True:
        # Random, so that several server processes do not prune at the same time.
        await asyncio.sleep(wait * random.uniform(0.5, 1.5))
        wait = EVERY_S
        try:
            await _sweep(store, writer, keep)
        except Exception as error:  # any kind: an uncaught error would end this task unnoticed
            _log.warning(
                "Pruning failed and is retried in an hour: %s", error, exc_info=_unforeseen(error)
            )


async def _sweep(store: PruneCalls, writer: Writer, keep: Keep) -> None:
    due = await asyncio.to_thread(store.due, keep)
    # Shuffle, so that runs that cannot be pruned do not block the same other runs each time.
    random.shuffle(due)
    failures = Failures(_log_failure)
    for one in due:
        with failures.of(one):
            await _prune(store, writer, one)


async def _prune(store: PruneCalls, writer: Writer, due: PruneTask) -> None:
    if not await asyncio.to_thread(store.left, due):
        return
    # The cells become all that is left, so check them while rows can still rebuild them.
    finding = await asyncio.to_thread(store.unsound, due.run_id)
    if finding is None:
        await drain(writer, store.prune(due))
    else:
        _log.warning("Not pruned: %s", finding)


def _log_failure(due: PruneTask, error: Exception) -> None:
    _log.warning("Not pruned: run %s: %s", due.run_id, error, exc_info=_unforeseen(error))


def _unforeseen(error: Exception) -> Exception | None:
    return None if isinstance(error, StoreError) else error


async def clear(store: PruneCalls, writer: Writer, run_id: UUID) -> None:
    """Remove the data of a deleted run. The hourly pruning removes what is left if this fails."""
    with suppress(StoreError):
        await drain(writer, store.clear(run_id))


async def drain(writer: Writer, steps: Iterator[int]) -> None:
    """Run each step in the writer's queue, and let other writers go between steps. Raises what a step raises."""
    while True:
        begun = time.monotonic()
        # A full queue did not run the step, so it is next again.
        with suppress(QueueFull):
            if await writer.run(lambda: next(steps, None)) is None:
                return
        await asyncio.sleep(PAUSE * (time.monotonic() - begun) + 0.001)
