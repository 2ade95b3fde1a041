"""Runs a year from its first day to its last: sends batches when due, and prunes and measures by the month.

Progress is kept in a folder, so an interrupted year continues where it stopped. What was sent of an unfinished stretch
is sent again, and is not stored twice.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.delivery.memory import Peak
from benchmarks.server import serving
from benchmarks.store.samples import Real
from benchmarks.store.timing import Client
from benchmarks.team import tokens
from campaigns.year import looking, service
from campaigns.year.account import Account, account, listed
from campaigns.year.clock import Clock
from campaigns.year.population import DAY_US, PEOPLE, START, population
from campaigns.year.senders import Person, Senders, sending
from campaigns.year.training import Piece, by_due, course_of


MONTH_ENDS = (31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365)
"""In days from the start of the year."""

LOOKED_AT = (1, 3, 6, 12)
KEEP_ROWS_DAYS, KEEP_SAMPLES_DAYS = 30, 90
_STRETCH_US = DAY_US // 4
"""Everything due within this time is sent at once; then the clock is set forward."""


class Month(msgspec.Struct, kw_only=True):
    """The cost of a month. ``before`` and ``after`` pruning are measurements, in months of `LOOKED_AT`."""

    month: int
    updates: int = 0
    seconds: float = 0.0
    prune_seconds: float = 0.0
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    closed: bool = False


class State(msgspec.Struct, kw_only=True):
    """The progress of a year, as stored in its folder."""

    scale: float
    seed: int
    until: int = START
    """Everything due before this time is stored. In microseconds since the epoch."""
    updates: int = 0
    peak_mb: float = 0.0
    people: list[Person] = []
    months: list[Month] = []
    account: dict[str, Any] | None = None


class Campaign:
    """Continues from what ``folder`` holds. Each measurement requests pages for ``look_s`` seconds."""

    def __init__(self, folder: Path, scale: float, seed: int, look_s: float) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._data, self._clock = folder / "data", folder / "clock"
        self._file, self._look_s = folder / "year.json", look_s
        self.state = State(scale=scale, seed=seed)
        if self._file.exists():
            self.state = msgspec.json.decode(self._file.read_bytes(), type=State)
        if (self.state.scale, self.state.seed) != (scale, seed):
            raise ValueError(f"{folder} holds another year: name another --folder")
        self.runs = population(scale, seed)
        self.total = sum(run.sent for run in self.runs)

    def run(self, real: Real, report: Callable[[], None]) -> Account:
        """Run the year and block. Call ``report`` after each stretch. An interrupt ends all of its processes."""
        clock = Clock(self._clock)
        clock.set(self.state.until)
        os.environ[service.CLOCK] = str(self._clock)
        with serving(self._data, module=service.__name__) as (url, token, process):
            client = Client(token)
            self._hire(url, token)
            with sending(url, self.state.people, dict(enumerate(self.runs)), real) as senders:
                for month, due in self._ahead():
                    for until, stretch in due:
                        self._send(senders, stretch)
                        clock.set(until)
                        self._note(until, stretch, process)
                        report()
                    clock.set(self._end_of(month.month))
                    self._close(month, lambda: self._look(url, client, process))
            clock.set(self.state.until + DAY_US)  # killed runs count as silent by now
            found = self._account(url, client)
        self.state.account = asdict(found)
        self._save()
        return found

    # -- its parts ----------------------------------------------------------------------------------------------------

    def _hire(self, url: str, token: str) -> None:
        """Create a token for each person."""
        for number in range(len(self.state.people), PEOPLE):
            name = f"person-{number:02d}"
            self.state.people.append(Person(name, tokens.make(url, token, name)))
        self._save()

    def _ahead(self) -> Iterator[tuple[Month, Iterator[tuple[int, list[Piece]]]]]:
        """The unfinished months, each with its stretches: when a stretch ends, and what is due in it."""
        order = by_due(self.runs)
        done = self.state.until
        for number in range(1, len(MONTH_ENDS) + 1):
            end = self._end_of(number)
            if number <= len(self.state.months) and self.state.months[number - 1].closed:
                continue
            if number > len(self.state.months):
                self.state.months.append(Month(month=number))
            begin = max(done, self._end_of(number - 1))
            due = (piece for piece in order if begin <= piece.due < end)
            yield self.state.months[number - 1], _stretches(due, end)

    @staticmethod
    def _end_of(month: int) -> int:
        return START + DAY_US * (0, *MONTH_ENDS)[month]

    def _send(self, senders: Senders, stretch: Sequence[Piece]) -> None:
        began = time.monotonic()
        senders.send(stretch)
        month = self.state.months[-1]
        month.seconds += time.monotonic() - began
        month.updates += sum(piece.updates for piece in stretch)

    def _note(self, until: int, stretch: Sequence[Piece], process: int) -> None:
        peak = Peak()
        peak.see(process)
        self.state.peak_mb = max(self.state.peak_mb, peak.rss)
        self.state.until = until
        self.state.updates += sum(piece.updates for piece in stretch)
        self._save()

    def _close(self, month: Month, look: Callable[[], dict[str, Any]]) -> None:
        """Prune, and measure before and after it if the month is in `LOOKED_AT`.

        After an interruption the first measurement before pruning stays, and the time of all parts is added.
        """
        looked_at = month.month in LOOKED_AT
        if looked_at and month.before is None:
            month.before = look()
            self._save()
        began = time.monotonic()
        try:
            self._prune()
        finally:
            month.prune_seconds += time.monotonic() - began
            self._save()
        month.after = look() if looked_at else None
        month.closed = True
        self._save()

    def _look(self, url: str, client: Client, process: int) -> dict[str, Any]:
        return looking.look(url, client, process, self._database, self._look_s)

    def _prune(self) -> None:
        """Prune by hand because the server is not set to, and at once because nobody trains now."""
        options = {
            "--keep-rows-days": KEEP_ROWS_DAYS,
            "--keep-samples-days": KEEP_SAMPLES_DAYS,
            "--data-dir": self._data,
        }
        command = [sys.executable, "-m", service.__name__, "db", "prune", "--yes", "--at-once"]
        command += [str(each) for option in options.items() for each in option]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or "not pruned" in done.stderr:
            raise RuntimeError(f"ampmon db prune: {done.stderr[-2000:]}")

    def _account(self, url: str, client: Client) -> Account:
        skipped = {run.number: int(course_of(run).skipped.sum()) for run in self.runs}
        return account(listed(url, client), self._database, self.runs, skipped)

    @property
    def _database(self) -> Path:
        return self._data / "server" / "ampmon.db"

    def _save(self) -> None:
        draft = self._file.with_suffix(".new")
        draft.touch(mode=0o600)  # it holds tokens
        draft.write_bytes(msgspec.json.encode(self.state))
        draft.replace(self._file)


def _stretches(due: Iterable[Piece], end: int) -> Iterator[tuple[int, list[Piece]]]:
    for number, pieces in groupby(due, key=lambda piece: (piece.due - START) // _STRETCH_US):
        yield min(START + (number + 1) * _STRETCH_US, end), list(pieces)
