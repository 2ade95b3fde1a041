"""Sends all spools of one server on one thread, so a server that does not answer holds up no other."""

from __future__ import annotations

import logging
import threading
import time
import urllib.parse
from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from ampmon.config import Route, is_loopback
from ampmon.errors import AmpmonError, NewerRecords, Refused, Unreachable
from ampmon.sender.backoff import FIRST_S, LOCAL_FIRST_S, LOCAL_MAX_S, MAX_S, Backoff
from ampmon.sender.delivery import BATCH_BYTES_MAX, SpoolDelivery
from ampmon.sender.statusfile import DestinationStatus, token_id
from ampmon.spool.state import Destination
from ampmon.transport import BLAMES_THE_BATCH, Transport


POLL_S = 0.02
WATCHED_PACE_S, UNWATCHED_PACE_S = 0.06, 0.5
"""Pauses between batches. A batch costs the server some 3 ms, and a further record in it 0.02 ms."""
BROKEN_PAUSE_S = 1.0
IDLE_S = 60.0
LIVING_EVERY_S = 0.5
"""How long the spools of running processes wait at most for another turn while many others have theirs."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class SpoolTurns:
    """A spool, when its next turn is, and the ``problem`` that only it has, or the attempt before it.

    ``at_fault``: in its last turn, the server refused its headers. ``newer``: its records were those of a newer ampmon.
    """

    delivery: SpoolDelivery
    backoff: Backoff
    problem: str | None = None
    at_fault: bool = False
    newer: bool = False


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
        self._token_id = token_id(destination.token)
        self._route = destination.route
        self._gone = gone
        self._clock = clock
        self._idle_since_s = clock()
        self._stop = threading.Event()
        local = is_loopback(urllib.parse.urlsplit(self.url).hostname)
        self._new_backoff = partial(
            Backoff,
            clock,
            first_s=LOCAL_FIRST_S if local else FIRST_S,
            max_s=LOCAL_MAX_S if local else MAX_S,
        )
        self._backoff = self._new_backoff()
        self._bytes_max = BATCH_BYTES_MAX
        self._spools: dict[str, SpoolTurns] = {}
        self._problem: str | None = None

    def limit(self, bytes_max: int) -> None:
        """Limit a batch to ``bytes_max`` bytes of records from now on."""
        self._bytes_max = bytes_max
        for delivery in self._deliveries():
            delivery.limit(bytes_max)

    def take(self, route: Route) -> None:
        """Take the route of the newest run from the next connection on. If it is another, try at once."""
        if route != self._route:
            self._route = self.transport.route = route
            self._backoff.succeeded()
            self._problem = None

    def add(self, delivery: SpoolDelivery) -> None:
        delivery.limit(self._bytes_max)
        self._spools[delivery.path.name] = SpoolTurns(delivery, self._new_backoff())

    def run(self) -> None:
        """Send until `stop` is called. Blocks."""
        try:
            while not self._stop.is_set():
                if pace_s := self._try_to_work():
                    self._gather(pace_s)
                else:
                    self._stop.wait(POLL_S)
        finally:
            self.transport.close()

    def _gather(self, pace_s: float) -> None:
        """Wait until the next batch is worth sending, at most ``pace_s``."""
        for _ in range(round(pace_s / POLL_S)):
            ready = [each for each in list(self._spools.values()) if each.problem is None]
            if any(each.delivery.urgent() for each in ready) or self._stop.wait(POLL_S):
                return

    def stop(self) -> None:
        self._stop.set()

    def _try_to_work(self) -> float:
        try:
            return self.work()
        except Exception:
            _log.exception("%s", self.url)
            # Go on: without this thread nothing would be sent.
            time.sleep(BROKEN_PAUSE_S)
            return 0.0

    def work(self, only: Container[tuple[UUID, int] | None] | None = None) -> float:
        """Give every spool a turn, or ``only`` those of some runs and ranks.

        Return the pause before the next batch, 0.0 if nothing was sent. Blocks for the requests; does not raise.
        """
        pace_s, served_s = 0.0, self._clock()
        earlier: dict[tuple[UUID, int], list[SpoolTurns]] = {}
        # Names sort by age. An attempt begins where the previous one ended, so the server needs all of that one first.
        for name, turns in sorted(self._spools.items()):
            if only is None and self._clock() - served_s >= LIVING_EVERY_S:
                # Thousands of ended runs may be left, and somebody watches those that go on.
                pace_s = self.work(self._running()) or pace_s
                served_s = self._clock()
            if self._backoff.remaining_s() > 0:
                return pace_s
            series = turns.delivery.series()
            if (only is not None and series not in only) or self._spools.get(name) is not turns:
                continue
            before = earlier.setdefault(series, []) if series is not None else []
            ended = next(filter(_is_over, before), None)
            if ended is not None and not turns.delivery.sent:
                turns.problem = ended.problem
                continue
            due = turns.backoff.remaining_s() <= 0
            if due:
                pace_s = self._turn(name, turns) or pace_s
            # Headers that were just refused may be refused forever, and a spool that failed twice in the same way may
            # be unreadable: let the next attempt begin.
            if name in self._spools and not (due and turns.at_fault):
                before.append(turns)
        return pace_s

    def _running(self) -> set[tuple[UUID, int] | None]:
        """The runs and ranks of which a process runs, as far as they are known."""
        living = (each for each in self._deliveries() if each.live())
        return {each.series() for each in living} - {None}

    def _turn(self, name: str, turns: SpoolTurns) -> float:
        delivery = turns.delivery
        turns.at_fault = False
        try:
            progress = delivery.advance()
        except Unreachable as error:
            self._backoff.failed(error.retry_after_s)
            self._problem = self._told(str(error), self._problem)
        except Refused as error:
            # The batch is refused, not a record. Each spool may have its own reason, and no record is dropped.
            turns.backoff.failed()
            turns.at_fault = error.status in BLAMES_THE_BATCH
            problem = f"the server rejects the records: {error}"
            turns.problem = self._told(problem, turns.problem)
            self._problem = None  # it answers
        except Exception as error:
            if not delivery.path.exists():
                self._went_well(name, turns, "done")
                # Called last: from then on, another thread may add a new spool of this name.
                self._gone(name)
                return 0.0
            turns.backoff.failed()
            turns.newer = isinstance(error, NewerRecords)
            ours = isinstance(error, AmpmonError)
            problem = str(error) if ours else f"{type(error).__name__}: {error}"
            turns.at_fault = problem == turns.problem
            turns.problem = problem
            _log.exception("spool %s", name)
        else:
            return self._went_well(name, turns, progress)
        return 0.0

    def _went_well(self, name: str, turns: SpoolTurns, progress: str) -> float:
        turns.problem = None
        if progress == "done":
            self._idle_since_s = self._clock()
            del self._spools[name]
        if progress != "sent":
            return 0.0
        self._backoff.succeeded()
        turns.backoff.succeeded()
        if self._problem is not None:
            _log.info("%s answers again", self.url)
        self._problem = None
        return WATCHED_PACE_S if turns.delivery.watched else UNWATCHED_PACE_S

    def _told(self, problem: str, before: str | None) -> str:
        if problem != before:
            _log.warning("%s: %s", self.url, problem)
        return problem

    def _deliveries(self) -> list[SpoolDelivery]:
        # A copy, because `add` may run on another thread meanwhile.
        return [turns.delivery for turns in list(self._spools.values())]

    # -- status, callable from any thread ---------------------------------------------------------------------------

    @property
    def problem(self) -> str | None:
        """Why records wait: the server's problem, or else that of a spool."""
        return self._problem or next(iter(self._refused().values()), None)

    def _refused(self) -> dict[str, str]:
        """The problems of single spools, by name."""
        spools = list(self._spools.items())
        return {name: turns.problem for name, turns in spools if turns.problem is not None}

    def is_idle(self) -> bool:
        return not self._spools and self._clock() - self._idle_since_s >= IDLE_S

    def is_outdated(self) -> bool:
        """Whether a running process writes records that only a newer sender can read."""
        return any(
            turns.newer and turns.delivery.attended() for turns in list(self._spools.values())
        )

    def live(self) -> bool:
        """Whether any writer may still append."""
        return any(delivery.live() for delivery in self._deliveries())

    def waiting(self) -> bool:
        """Whether any spool has something to send, or can be concluded."""
        return any(delivery.waiting() for delivery in self._deliveries())

    def status(self) -> DestinationStatus:
        return DestinationStatus(
            url=self.url,
            token_id=self._token_id,
            problem=self._problem,
            refused=self._refused(),
            waiting_bytes=sum(delivery.waiting_bytes() for delivery in self._deliveries()),
        )


def _is_over(turns: SpoolTurns) -> bool:
    # Check afresh: when a run resumes at once, the cached answer may still say that its last attempt lives.
    return not turns.delivery.live(asked_now=True)
