"""One round: kills everything repeatedly while answers get lost, then lets it come to rest and counts."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import URL, create_engine

from ampmon import sender
from ampmon_server.settings import Settings
from ampmon_server.store.engine.opening import url_of
from campaigns.soak.comparison import Training, compare
from campaigns.soak.proxy import Fault, Proxy
from campaigns.soak.tally import Tally
from campaigns.soak.victims import Lane, Lives, SenderVictim, ServerVictim
from databases import defects
from serving import free_port


_TICK_S = 0.01
_AFRESH_S = 1.0
"""How often a round at rest makes sure that a sender runs."""
_BESIDE: Mapping[Fault, float] = {
    "repeat": 0.08,
    "cut_request": 0.04,
    "cut_answer": 0.04,
    "reset": 0.03,
    "delay": 0.05,
}
"""The shares of other faults than lost acknowledgements."""
_STRETCH_MAX = 8.0
_LOST_ACKS = 0.1
_LOST_ACKS_BEHIND = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A round lasts until there are ``kills`` of each role and as many lost acknowledgements, or for ``limit_s``."""

    kills: int = 50
    limit_s: float = 300.0
    rest_s: float = 90.0
    """A round at rest is given up when nothing has arrived for this long."""
    lanes: int = 2
    exact: bool = False
    """Whether to spare a role that was killed often enough, so that the others reach their number sooner."""
    lives: Lives = field(default_factory=Lives)
    before: str = ""
    """Code that the server runs first."""


class Stopped(Exception):
    """A round was abandoned and does not count."""


class Round:
    """Works in ``folder``, which is new."""

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        seed: str,
        database_url: str | None = None,
    ) -> None:
        folder.mkdir(parents=True)
        self.tally = Tally(rounds=1)
        self._folder = folder
        self._plan = plan
        self._data = folder / "data"
        self._settings = Settings(data_directory=self._data, database_url=database_url)
        chance = random.Random(seed)
        port = free_port()
        self._proxy = Proxy(port, seed=chance.getrandbits(32))
        environment = {
            "AMPMON_DIR": str(self._data),
            "AMPMON_URL": self._proxy.url,
            "AMPMON_MODE": "online",
        }
        arguments = ["serve", "--port", str(port), "--data-dir", str(self._data)]
        arguments += ["--allow-host", f"127.0.0.1:{self._proxy.port}"]
        if database_url is not None:
            arguments += ["--database-url", database_url]
        lives = plan.lives
        self._lanes = [Lane(folder, environment, chance, lives) for _ in range(plan.lanes)]
        self._sender = SenderVictim(self._data, self._proxy.counts.total, chance, lives)
        self._server = ServerVictim(arguments, folder, plan.before, chance, lives)

    def run(self, stop: threading.Event | None = None) -> Tally:
        """Block until all is counted. Raises Stopped once ``stop`` is set. Leaves nothing running in any case."""
        began_s = time.monotonic()
        try:
            self._kill(began_s, stop or threading.Event())
            resting_s = time.monotonic()
            self._rest()
            self.tally.rest_seconds = time.monotonic() - resting_s
            self._compare()
        finally:
            self._end()
        self.tally.count.problems += defects(self._settings)
        return self.tally

    @property
    def database_url(self) -> URL:
        return url_of(self._settings)

    def trainings(self) -> list[Training]:
        """The trainings that were begun, those of one run in order."""
        return [each for lane in self._lanes for each in lane.trainings]

    # -- its parts ------------------------------------------------------------------------------------------------

    def _kill(self, began_s: float, stop: threading.Event) -> None:
        tally, plan = self.tally, self._plan
        while tally.fewest() < plan.kills and time.monotonic() - began_s < plan.limit_s:
            now_s = time.monotonic()
            for lane in self._lanes:
                lane.tick(now_s, begin=True, killing=self._wanted(tally.trainer))
            self._sender.tick(now_s, killing=self._wanted(tally.sender))
            self._server.tick(now_s, killing=self._wanted(tally.server))
            self._note()
            self._balance()
            behind = tally.lost_acks < min(tally.trainer, tally.sender, tally.server)
            lost = _LOST_ACKS_BEHIND if behind else _LOST_ACKS
            self._proxy.chances = {**_BESIDE, "lose_ack": lost}
            if stop.wait(_TICK_S):
                raise Stopped

    def _wanted(self, kills: int) -> bool:
        return not self._plan.exact or kills < self._plan.kills

    def _balance(self) -> None:
        """Let roles with many kills live longer, so that all four numbers reach the target at about the same time."""
        fewest = self.tally.fewest() + 3
        for lane in self._lanes:
            lane.stretch = _stretch(lane.kills * len(self._lanes) / fewest)
        self._sender.stretch = _stretch(self._sender.kills / fewest)
        self._server.stretch = _stretch(self._server.kills / fewest)

    def _note(self) -> None:
        tally, proxy = self.tally, self._proxy
        tally.trainer = sum(lane.kills for lane in self._lanes)
        tally.trainings = sum(len(lane.trainings) for lane in self._lanes)
        tally.sender, tally.sender_before = self._sender.kills, self._sender.kills_before
        tally.server = self._server.kills
        tally.lost_acks, tally.repeated = proxy.lost_acks, proxy.repeated
        tally.cut = proxy.counts["cut_request"] + proxy.counts["reset"] + proxy.counts["away"]

    def _rest(self) -> None:
        """Let everything arrive. Only trainings that are still at work are killed."""
        self._proxy.calm()
        moved_s = looked_s = time.monotonic()
        left: list[str] = []
        at_work = True
        while at_work or self._left():
            now_s = time.monotonic()
            at_work = sum(lane.tick(now_s, begin=False) for lane in self._lanes) > 0
            self._server.tick(now_s, killing=False)
            if now_s - looked_s > _AFRESH_S:
                looked_s = now_s
                sender.ensure_running(self._data)
            if at_work or left != self._left():
                moved_s, left = now_s, self._left()
            if now_s - moved_s > self._plan.rest_s:
                self.tally.count.problems.append(f"left in the spool: {left}")
                break
            time.sleep(_TICK_S)
        self._note()

    def _left(self) -> list[str]:
        spool = self._data / "spool"
        names = os.listdir(spool) if spool.exists() else []
        # A training killed at its start leaves an empty directory, hidden because it is not a spool yet.
        return sorted(name for name in names if not name.startswith("."))

    def _compare(self) -> None:
        trainings = self.trainings()
        self.tally.runs = len({each.run_id for each in trainings})
        database = create_engine(self.database_url)
        with database.connect() as connection:
            count = compare(connection, trainings)
        database.dispose()
        count.problems += self.tally.count.problems
        count.problems += self._server.problems
        for lane in self._lanes:
            count.problems += lane.problems
        self.tally.count = count

    def _end(self) -> None:
        self._server.stop()
        self._proxy.close()
        for lane in self._lanes:
            lane.end()
        self._sender.end()


def _stretch(ahead: float) -> float:
    return min(max(ahead, 1.0), _STRETCH_MAX)
