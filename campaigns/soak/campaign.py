"""Runs parallel rounds until there were enough kills. Keeps each round's tally in a file."""

from __future__ import annotations

import shutil
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import msgspec

import postgres
from benchmarks import commits
from campaigns.soak.round import Plan, Round, Stopped
from campaigns.soak.tally import Tally, summed


KILLS, KILLS_A_ROUND = 1000, 40
"""Of each role in a whole soak, whose result is written, and in a round."""

POSTGRES_EVERY, POSTGRES_AT = 10, 4
"""The fifth of every ten rounds uses PostgreSQL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``target`` kills of each role, ``at_once`` parallel rounds, at most ``limit_s`` seconds."""

    target: int
    seed: int
    at_once: int
    limit_s: float


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """A finished round, as stored in the folder."""

    number: int
    seed: str
    engine: str
    commit: str
    began: float
    ended: float
    tally: Tally


class Campaign:
    """Continues from the rounds of the same seed in ``folder``."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.settings = settings
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = folder / f"rounds-{settings.seed}.jsonl"
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.done = self._read()
        self._under_way: dict[int, Tally] = {}
        self._plan = Plan(kills=min(KILLS_A_ROUND, settings.target))
        self._commit = commits.newest(*commits.PRODUCT)
        self._next = max((each.number for each in self.done), default=-1) + 1

    def _read(self) -> list[Done]:
        lines = self._file.read_bytes().splitlines() if self._file.exists() else []
        return [msgspec.json.decode(each, type=Done) for each in lines]

    # -- progress -------------------------------------------------------------------------------------------------

    def total(self, engine: str | None = None) -> Tally:
        """The sum over the finished rounds, on one engine or on all."""
        return summed(each.tally for each in self.done if engine in (None, each.engine))

    def so_far(self) -> Tally:
        """The same, including the rounds under way."""
        with self._lock:
            return summed([self.total(), *self._under_way.values()])

    def complete(self) -> bool:
        return self.total().fewest() >= self.settings.target

    def wrong(self) -> bool:
        return self.total().count.wrong()

    def seconds(self) -> float:
        """The time during which rounds ran; parallel rounds count once."""
        seconds, until = 0.0, 0.0
        for began, ended in sorted((each.began, each.ended) for each in self.done):
            seconds += max(ended - max(began, until), 0.0)
            until = max(until, ended)
        return seconds

    # -- running --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Block until there were enough kills, the time is up, or it is stopped."""
        end_s = time.monotonic() + self.settings.limit_s
        with postgres.running() as database:
            workers = [
                threading.Thread(target=self._work, args=(database, end_s))
                for _ in range(self.settings.at_once)
            ]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()

    def stop(self) -> None:
        """Abandon the rounds under way."""
        self._stop.set()

    def _work(self, database: postgres.Postgres, end_s: float) -> None:
        while not (self.complete() or self._stop.is_set() or time.monotonic() > end_s):
            with self._lock:
                number, self._next = self._next, self._next + 1
            url = database.new_database() if number % POSTGRES_EVERY == POSTGRES_AT else None
            folder = self._folder / f"round-{self.settings.seed}-{number}"
            shutil.rmtree(folder, ignore_errors=True)
            one = Round(folder, self._plan, self._seed(number), url)
            try:
                self._do(number, one, "SQLite" if url is None else "PostgreSQL")
            except Stopped:
                pass
            else:
                if one.tally.count.wrong():
                    continue  # its folder stays for inspection
            if url is not None:
                database.drop(url)
            shutil.rmtree(folder)

    def _do(self, number: int, one: Round, engine: str) -> None:
        began = time.time()
        self._under_way[number] = one.tally
        try:
            one.run(self._stop)
        except Stopped:
            raise
        except Exception:
            one.tally.count.problems.append(traceback.format_exc())
        finally:
            with self._lock:
                del self._under_way[number]
        self._note(
            Done(
                number=number,
                seed=self._seed(number),
                engine=engine,
                commit=self._commit,
                began=began,
                ended=time.time(),
                tally=one.tally,
            )
        )

    def _seed(self, number: int) -> str:
        return f"{self.settings.seed}/{number}"

    def _note(self, done: Done) -> None:
        with self._lock, self._file.open("ab") as file:
            file.write(msgspec.json.encode(done) + b"\n")
            self.done.append(done)
