"""The sender's main loop: finds spools, hands each to its server's worker, and ends when nothing is left to do."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from ampmon.config import server_address
from ampmon.sender.adoption import adopt, is_silent
from ampmon.sender.delivery import BATCH_BYTES_MAX, SpoolDelivery
from ampmon.sender.destination_worker import DestinationWorker
from ampmon.sender.election import forget, home
from ampmon.sender.statusfile import SenderStatus, clear_status
from ampmon.spool import layout
from ampmon.spool.state import Destination
from ampmon.system import private
from ampmon.transport import HttpTransport, Transport


IDLE_EXIT_S = 5.0
UNREACHABLE_EXIT_S = 300.0
_SPOOLS_POLL_S = 0.05
_LOOK_EVERY_S = 1.0
_STRANGERS_EVERY_S = 15.0
_REPORT_EVERY_S = 1.0
_JOIN_S = 2.0
_log = logging.getLogger(__name__)

TransportFor: TypeAlias = Callable[[Destination], Transport]


def http_transports(directory: Path) -> TransportFor:
    """Return a factory of HTTP transports. They use the destination's token, or else the data directory's.

    A transport goes to the destination's address. If nobody named one, it follows the server of the data directory.
    """

    def to(destination: Destination) -> Transport:
        url = destination.url
        return HttpTransport(
            url if destination.named else lambda: server_address(directory) or url,
            token=destination.token,
            token_file=directory / "token",
            route=destination.route,
        )

    return to


class Loop:
    """Sends the spools of ``directory`` until `run` finds nothing more to do."""

    def __init__(
        self,
        directory: Path,
        transport_for: TransportFor,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._transport_for = transport_for
        self._clock = clock
        self._workers: dict[tuple[str, str | None, bool], DestinationWorker] = {}
        self._next_look_s: dict[str, float] = {}
        """By the spool's name. Infinite once its worker has it."""
        self._threads: list[threading.Thread] = []
        self._spool_changed_ns = -1
        self._looked_s = clock() - _LOOK_EVERY_S
        self._reported_s = clock() - _REPORT_EVERY_S
        self._problems: dict[str, str | None] = {}
        self._quiet_since_s = clock()

    def run(self, stop: threading.Event, elected: Callable[[], bool] = lambda: True) -> None:
        """Send until ``stop`` is set or nothing is left: no writer lives, and nothing could be sent for a while.

        Also end if a process with a newer ampmon writes, which then starts its own sender, or once ``elected`` returns
        False, and then leave all files in place.
        """
        with contextlib.suppress(OSError):
            private.make(home(self._directory))
            forget(self._directory)
        try:
            while not stop.wait(_SPOOLS_POLL_S) and elected():
                try:
                    self._look_for_spools()
                    self._let_go()
                    outdated = any(worker.is_outdated() for worker in self._workers.values())
                    if outdated or (self._report() and self._nothing_to_do()):
                        break
                except OSError:
                    # The workers continue with what they have.
                    _log.exception("the data directory cannot be used")
                    stop.wait(_LOOK_EVERY_S)
        finally:
            for worker in self._workers.values():
                worker.stop()
            for thread in self._threads:
                # A request may take longer. Its thread is a daemon, and another sender sends the batch again.
                thread.join(_JOIN_S)
            if elected():
                with contextlib.suppress(OSError):
                    clear_status(self._directory)

    def _look_for_spools(self) -> None:
        """Hand new spools to their workers. Cheap while there are none."""
        now_s = self._clock()
        # A folder's time changes with its entries, and costs less to read than they do.
        changed_ns = _modified_ns(self._directory / "spool")
        if changed_ns == self._spool_changed_ns and now_s - self._looked_s < _LOOK_EVERY_S:
            return
        self._spool_changed_ns, self._looked_s = changed_ns, now_s
        for path in layout.spools(self._directory):
            if self._next_look_s.get(path.name, 0.0) <= now_s:
                self._meet(path)

    def _meet(self, path: Path) -> None:
        destination = Destination.read(path)
        if destination is None:
            # Left by a sender that was killed while removing it. A spool gets its name once it has files.
            with contextlib.suppress(OSError):
                path.rmdir()
            if not layout.segments(path) and is_silent(path):
                layout.remove(path)
            self._next_look_s[path.name] = self._clock() + _LOOK_EVERY_S
            return
        if destination.mode != "online":
            self._next_look_s[path.name] = math.inf
            return
        try:
            ours = adopt(path, destination)
            if ours is None:
                self._next_look_s[path.name] = self._clock() + _STRANGERS_EVERY_S
                return
            if ours != path:
                _log.info("took over the spool %s as %s", path.name, ours.name)
            worker = self._worker(destination)
            if ours == path:  # its run began here, after those seen before
                worker.take(destination.route)
            delivery = SpoolDelivery(ours, destination, worker.transport, self._clock)
            self._next_look_s[ours.name] = math.inf
            worker.add(delivery)
            self._quiet_since_s = self._clock()
        except OSError as error:
            _log.warning("cannot read the spool %s: %s", path, error)
            self._next_look_s[path.name] = self._clock() + _STRANGERS_EVERY_S

    def _worker(self, destination: Destination) -> DestinationWorker:
        key = (destination.url, destination.token, destination.named)
        if key not in self._workers:
            transport = self._transport_for(destination)
            worker = DestinationWorker(destination, transport, self._clock, self._next_look_s.pop)
            self._workers[key] = worker
            self._share_memory()
            thread = threading.Thread(
                target=worker.run, name=f"ampmon to {destination.url}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        return self._workers[key]

    def _share_memory(self) -> None:
        """Split one memory budget among the workers, since each holds a batch and copies of it."""
        for worker in self._workers.values():
            worker.limit(BATCH_BYTES_MAX // len(self._workers))

    def _let_go(self) -> None:
        """Stop idle workers. Only this thread gives them spools, so none can arrive meanwhile."""
        idle = [key for key, worker in self._workers.items() if worker.is_idle()]
        for key in idle:
            self._workers.pop(key).stop()
        if idle:
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            self._share_memory()

    def _report(self) -> bool:
        """Write the status every second, and at once if a server's problem changes. Return whether it was written."""
        now_s = self._clock()
        problems = {worker.url: worker.problem for worker in self._workers.values()}
        if now_s - self._reported_s < _REPORT_EVERY_S and problems == self._problems:
            return False
        self._reported_s, self._problems = now_s, problems
        SenderStatus(
            pid=os.getpid(),
            updated=time.time_ns() // 1000,
            destinations=tuple(worker.status() for worker in self._workers.values()),
        ).write(self._directory)
        return True

    def _nothing_to_do(self) -> bool:
        """Whether it was quiet long enough for the sender to exit. The next sender finds what is left."""
        workers = list(self._workers.values())
        waiting = [worker for worker in workers if worker.waiting()]
        if any(worker.live() for worker in workers) or any(
            worker.problem is None for worker in waiting
        ):
            self._quiet_since_s = self._clock()
        patience_s = UNREACHABLE_EXIT_S if waiting else IDLE_EXIT_S
        return self._clock() - self._quiet_since_s >= patience_s


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
