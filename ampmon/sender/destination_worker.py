"""Sends all spools of one server on one thread, so a server that does not answer holds up no other."""

from __future__ import annotations

import logging
import threading
import time
import urllib.parse
from collections.abc import Callable
from functools import partial
from uuid import UUID

from ampmon.errors import Refused, Unreachable
from ampmon.sender.backoff import FIRST_S, LOCAL_FIRST_S, LOCAL_MAX_S, MAX_S, Backoff
from ampmon.sender.delivery import BATCH_BYTES_MAX, SpoolDelivery
from ampmon.sender.statusfile import DestinationStatus
from ampmon.spool import Destination
from ampmon.transport import Transport


POLL_S = 0.02
BROKEN_PAUSE_S = 1.0
IDLE_S = 60.0
_LOCAL = frozenset({"127.0.0.1", "::1", "localhost"})
_log = logging.getLogger(__name__)


class DestinationWorker:
    """Sends the spools of one destination in turns. `add` may be called from another thread than `run`.

    The thread of `run` calls ``gone`` with the name of each spool that somebody removed.
    """

    def __init__(
        self,
        destination: Destination,
        transport: Transport,
        clock: Callable[[], float],
        gone: Callable[[str], object],
    ) -> None:
        self.url = destination.url
        self.transport = transport
        self._gone = gone
        self._clock = clock
        self._idle_since_s = clock()
        self._stop = threading.Event()
        local = urllib.parse.urlsplit(self.url).hostname in _LOCAL
        self._new_backoff = partial(
            Backoff,
            clock,
            first_s=LOCAL_FIRST_S if local else FIRST_S,
            max_s=LOCAL_MAX_S if local else MAX_S,
        )
        self._backoff = self._new_backoff()
        self._bytes_max = BATCH_BYTES_MAX
        self._deliveries: dict[str, tuple[SpoolDelivery, Backoff]] = {}
        self._problem: str | None = None
        self._since = _now()
        self._rejected = self._corrupt = 0

    def limit(self, bytes_max: int) -> None:
        """Limit a batch to ``bytes_max`` bytes of records from now on."""
        self._bytes_max = bytes_max
        for delivery, _ in list(self._deliveries.values()):
            delivery.limit(bytes_max)

    def add(self, delivery: SpoolDelivery) -> None:
        delivery.limit(self._bytes_max)
        self._deliveries[delivery.path.name] = (delivery, self._new_backoff())

    def run(self) -> None:
        """Send until `stop` is called. Blocks."""
        try:
            while not self._stop.is_set():
                if not self._try_to_work():
                    self._stop.wait(POLL_S)
        finally:
            self.transport.close()

    def stop(self) -> None:
        self._stop.set()

    def _try_to_work(self) -> bool:
        try:
            return self.work()
        except Exception:
            _log.exception("%s", self.url)
            # Go on: without this thread nothing would be sent.
            time.sleep(BROKEN_PAUSE_S)
            return False

    def work(self) -> bool:
        """Give every spool a turn. Return whether anything was sent. Blocks for the requests; does not raise."""
        moved = False
        earlier: dict[tuple[UUID, int], list[SpoolDelivery]] = {}
        # Names sort by age. An attempt begins where the previous one ended, so the server needs all of that one first.
        for name, (delivery, backoff) in sorted(self._deliveries.items()):
            if self._backoff.remaining_s() > 0:
                return moved
            if backoff.remaining_s() > 0:
                continue
            series = delivery.series()
            before = earlier.setdefault(series, []) if series is not None else []
            # Check afresh: when a run resumes at once, the cached answer may still say that its last attempt lives.
            if any(not each.live(asked_now=True) for each in before):
                continue
            moved |= self._turn(name, delivery, backoff)
            if name in self._deliveries:
                before.append(delivery)
        return moved

    def _turn(self, name: str, delivery: SpoolDelivery, backoff: Backoff) -> bool:
        try:
            progress = delivery.advance()
        except Unreachable as error:
            self._backoff.failed(error.retry_after_s)
            self._trouble(str(error))
        except Refused as error:
            # The batch is refused, not a record. Each spool may have its own reason, and no record is dropped.
            backoff.failed()
            self._trouble(f"the server rejects the records: {error}")
        except Exception as error:
            if not delivery.path.exists():
                self._went_well(name, delivery, backoff, "done")
                # Called last: from then on, another thread may add a new spool of this name.
                self._gone(name)
                return False
            backoff.failed()
            self._trouble(f"{type(error).__name__}: {error}")
            _log.exception("spool %s", name)
        else:
            return self._went_well(name, delivery, backoff, progress)
        return False

    def _went_well(
        self, name: str, delivery: SpoolDelivery, backoff: Backoff, progress: str
    ) -> bool:
        if progress == "done":
            self._rejected += delivery.rejected
            self._corrupt += delivery.corrupt
            self._idle_since_s = self._clock()
            del self._deliveries[name]
        if progress == "sent":
            self._backoff.succeeded()
            backoff.succeeded()
            if self._problem is not None:
                _log.info("%s answers again", self.url)
            self._problem = None
            self._since = _now()
        return progress == "sent"

    def _trouble(self, problem: str) -> None:
        if problem != self._problem:
            _log.warning("%s: %s", self.url, problem)
        self._problem = problem

    # -- status, callable from any thread ---------------------------------------------------------------------------

    @property
    def problem(self) -> str | None:
        return self._problem

    def is_idle(self) -> bool:
        return not self._deliveries and self._clock() - self._idle_since_s >= IDLE_S

    def live(self) -> bool:
        """Whether any writer may still append."""
        return any(delivery.live() for delivery, _ in list(self._deliveries.values()))

    def waiting(self) -> bool:
        """Whether any spool has something to send, or can be concluded."""
        return any(
            delivery.sendable() and (delivery.waiting_bytes() > 0 or not delivery.live())
            for delivery, _ in list(self._deliveries.values())
        )

    def status(self) -> DestinationStatus:
        deliveries = [delivery for delivery, _ in list(self._deliveries.values())]
        return DestinationStatus(
            url=self.url,
            problem=self._problem,
            since=self._since,
            waiting_bytes=sum(delivery.waiting_bytes() for delivery in deliveries),
            rejected=self._rejected + sum(delivery.rejected for delivery in deliveries),
            corrupt=self._corrupt + sum(delivery.corrupt for delivery in deliveries),
        )


def _now() -> int:
    return time.time_ns() // 1000
