"""Forwards runs to one destination, in a thread of its own: a destination that is down or hangs delays nothing else.

A cursor in the database tracks what was forwarded. So nothing queues up in memory, and after an outage or a kill
forwarding continues where it stopped.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar
from uuid import UUID

from ampmon.errors import ConfigurationError
from ampmon.system.installing import install
from ampmon_server.background.writer import QueueFull, Writer
from ampmon_server.store.engine.errors import NotFound, StoreError, Unreadable
from ampmon_server.store.forwarding import Forwarding, Portion


POLL_S = 1.0
PAUSE_MAX_S = 60.0
"""Longest pause between attempts in an outage. The first pause is twice `POLL_S`, and each next one doubles."""
SPARED_S = 3600.0
"""Delay until the next attempt to forward a rejected or damaged run."""
RUNS_MAX = 64
"""Most runs in one round."""
SKEW_US = 120 * 1_000_000
"""A change may become visible this long after its recorded time: server clocks differ and writes take time."""

_EXTRAS = {"tensorboard": "files", "mlflow": "mlflow"}
"""The extra that each kind of destination needs."""

Result = TypeVar("Result")
_log = logging.getLogger(__name__)


class Rejected(Exception):
    """The destination rejects this run. It may accept others."""


class ForwardDestination(Protocol):
    """Accepts portions one at a time, from one thread."""

    key: str
    """Identifies the destination in the database. Contains no secret."""

    def deliver(self, portion: Portion) -> str:
        """Write a portion durably, and return what to store as the next portion's ``position``. May block.

        A second call with the same position replaces what the first call wrote. Raises Rejected. Any other exception
        means that the destination is unavailable now.
        """
        ...


class Forwarder:
    """Forwards to ``destination``, named ``label`` in the log. ``points`` and ``failed`` count since the start.

    ``up`` is whether the destination was last found usable. ``waiting`` is how many runs are not fully forwarded, up to
    64.
    """

    def __init__(
        self, label: str, destination: ForwardDestination, store: Forwarding, writer: Writer
    ) -> None:
        self.label = label
        self.points = self.failed = self.waiting = 0
        self.up = True
        self._destination = destination
        self._store = store
        self._writer = writer
        self._since = 0
        self._spared: dict[UUID, float] = {}

    async def keep_forwarding(self) -> None:
        """Forward stored records until cancelled."""
        pause = POLL_S
        while True:
            try:
                await self._alone()
                pause = POLL_S
            except (StoreError, QueueFull):  # the database is busy
                pass
            except (
                Exception
            ) as error:  # any kind: an outage, or a bug that would end this task unnoticed
                self._failed(error)
                pause = min(2 * pause, PAUSE_MAX_S)
            await asyncio.sleep(pause)

    async def _alone(self) -> None:
        """Run a round, unless another server process is forwarding to this destination."""
        turn = self._store.forwarding_alone(self._destination.key)
        # Entered and left on threads, because both wait for the database.
        alone = await asyncio.to_thread(turn.__enter__)
        try:
            if alone:
                await self._round()
        finally:
            await asyncio.to_thread(turn.__exit__, None, None, None)

    async def _round(self) -> None:
        key, begun = self._destination.key, time.time_ns() // 1000
        if not self._since:
            await self._writer.run(partial(self._store.begin_forwarding, key))
        behind = await asyncio.to_thread(self._store.behind, key, self._since, RUNS_MAX)
        self.waiting = len(behind)
        # Spared runs too: they are not listed if they have not changed since.
        known = dict.fromkeys((*(each.run_id for each in behind), *self._spared))
        due = [each for each in known if self._spared.get(each, 0.0) <= time.monotonic()]
        for run_id in due[:RUNS_MAX]:
            try:
                await self._forward(run_id)
            except NotFound:  # deleted meanwhile
                self._spared.pop(run_id, None)
            except Unreadable as error:  # a damaged run must not hold back others
                self._spare(run_id, error)
        if len(behind) == RUNS_MAX:
            self._since = max(self._since, behind[-1].changed)
        else:
            self._since = max(begun - SKEW_US, 1)

    async def _forward(self, run_id: UUID) -> None:
        """Forward everything stored of a run. It rests as long as each portion took, to leave time for ingest."""
        version = 0
        while not version:
            started = time.monotonic()
            portion = await asyncio.to_thread(self._store.portion, self._destination.key, run_id)
            position = await self._deliver(portion)
            if position is None:
                return
            await self._writer.run(partial(self._store.keep_forwarded, portion, position))
            self.points += sum(len(piece.points) for piece in portion.pieces)
            version = portion.version
            await asyncio.sleep(time.monotonic() - started)
        self._spared.pop(run_id, None)

    async def _deliver(self, portion: Portion) -> str | None:
        """Return the new position, or None if the destination rejected the run."""
        try:
            position = await _in_thread(partial(self._destination.deliver, portion))
        except Rejected as error:
            self._spare(portion.run_id, error)
            return None
        if not self.up:
            _log.warning("Forwarding to %s works again", self.label)
        self.up = True
        return position

    def _spare(self, run_id: UUID, error: Exception) -> None:
        if run_id not in self._spared:  # it may fail each time
            _log.warning("Run %s is not forwarded to %s: %s", run_id, self.label, error)
        self._spared[run_id] = time.monotonic() + SPARED_S
        self.failed += 1

    def _failed(self, error: Exception) -> None:
        self.failed += 1
        if self.up:
            foreseen = isinstance(error, OSError)
            _log.warning(
                "Forwarding to %s is paused until the destination works again: %s",
                self.label,
                " ".join(str(error).split()) or type(error).__name__,
                exc_info=None if foreseen else error,
            )
        self.up = False


async def _in_thread(function: Callable[[], Result]) -> Result:
    """Run a function that may hang. Its daemon thread never blocks process exit, unlike an executor's thread."""
    future: Future[Result] = Future()
    future.set_running_or_notify_cancel()  # from now on, a server that stops leaves it alone

    def work() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="ampmon-forward", daemon=True).start()
    return await asyncio.wrap_future(future)


# -- destinations ------------------------------------------------------------------------------------------------------


def opened(named: Sequence[str]) -> dict[str, ForwardDestination]:
    """Return the destinations that `--forward` names, by their label in logs and metrics. Raises ConfigurationError."""
    found: dict[str, ForwardDestination] = {}
    kinds: Counter[str] = Counter()
    for each in named:
        kind, _, place = each.partition(":")
        if kind not in _EXTRAS or not place:
            raise ConfigurationError(
                f"--forward {kind}: write tensorboard:DIR or mlflow:URI, such as mlflow:http://127.0.0.1:5000"
            )
        if importlib.util.find_spec(kind) is None:
            raise ConfigurationError(
                f"--forward {kind}: {kind} is not installed: {install(_EXTRAS[kind])}"
            )
        kinds[kind] += 1
        label = kind if kinds[kind] == 1 else f"{kind}-{kinds[kind]}"
        found[label] = _destination(kind, place)
    if len({each.key for each in found.values()}) < len(found):
        raise ConfigurationError("--forward: the same destination is named twice")
    return found


def _destination(kind: str, place: str) -> ForwardDestination:
    if kind == "tensorboard":
        from ampmon_server.background.forwarding.tensorboard import TensorBoard

        return TensorBoard(Path(place).expanduser().absolute())
    from ampmon_server.background.forwarding.mlflow import MLflow

    return MLflow(place)
