"""Compares trainers' reports with a server's database: each record once, unchanged, and nothing else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
from sqlalchemy import Connection, Row, select

from ampmon_server.store.pages.pages import PagedSeries, Rows, unpack
from ampmon_server.store.schema.tables import (
    attempts,
    gradient_blocks,
    ledger,
    runs,
    skips,
)
from ampmon_server.store.streams.attempts import GONE
from ampmon_server.store.updates import scalars, updates
from campaigns.soak.tally import Count
from campaigns.soak.trainer_log import TrainerLog, Update


@dataclass(frozen=True, slots=True)
class Training:
    """A started trainer: its run and process, the step it was asked to resume at, and its log."""

    run_id: UUID
    pid: int
    resume_step: int | None
    log: Path

    def began(self) -> bool:
        """Whether it has reported anything yet."""
        return self.log.exists() and self.log.stat().st_size > 0


def compare(connection: Connection, trainings: Sequence[Training]) -> Count:
    """Count which of the trainings' records are stored. Nothing else may be."""
    count = Count()
    by_run: dict[UUID, list[Training]] = defaultdict(list)
    for training in trainings:
        by_run[training.run_id].append(training)
    for run_id, of_run in by_run.items():
        _Run(connection, run_id, count).compare(of_run)
    known = {run_id.bytes for run_id in by_run}
    foreign = [each for each in connection.scalars(select(runs.c.run_id)) if each not in known]
    if foreign:
        count.problems.append(f"{len(foreign)} runs that nobody began")
    return count


class _Run:
    def __init__(self, connection: Connection, run_id: UUID, count: Count) -> None:
        self._connection = connection
        self._id = run_id.bytes
        self._name = f"run {run_id}"
        self._count = count
        self._steps: dict[int, Update] = {}
        """The stored update of each step; the later attempt's if there are two."""

    def compare(self, trainings: list[Training]) -> None:
        rows = {row.pid: row for row in self._rows(select(attempts), attempts)}
        ended = []
        for training in trainings:
            log, row = TrainerLog.read(training.log), rows.pop(training.pid, None)
            self._count.reported += len(log.updates) + len(log.losses)
            if row is None:
                self._missing(len(log.updates) + len(log.losses), log)
                continue
            attempt = _Attempt(self._connection, self._id, row)
            self._origin(training, row)
            self._records(log, attempt)
            self._ending(log, row)
            ended.append(row)
        if rows:
            self._problem(f"{len(rows)} attempts that nobody began")
        if ended:
            self._totals(ended[-1])

    def _problem(self, words: str) -> None:
        self._count.problems.append(f"{self._name}: {words}")

    def _missing(self, count: int, log: TrainerLog) -> None:
        from_memory = min(count, log.exposed)
        self._count.lost_from_memory += from_memory
        self._count.lost += count - from_memory

    # -- one attempt ----------------------------------------------------------------------------------------------

    def _origin(self, training: Training, row: Row[Any]) -> None:
        assumed = training.resume_step is None
        expected = max(self._steps, default=-1) + 1 if assumed else training.resume_step
        if (row.origin, bool(row.origin_assumed and row.attempt)) != (
            expected,
            assumed and row.attempt > 0,
        ):
            self._problem(f"attempt {row.attempt} begins at {row.origin}, not at {expected}")

    def _records(self, log: TrainerLog, attempt: _Attempt) -> None:
        in_flight = 0
        for what, recorded, stored in (
            ("updates", log.updates, attempt.updates),
            ("losses", log.losses, attempt.losses),
        ):
            missing = [at for at in range(len(recorded)) if at not in stored]
            self._missing(len(missing), log)
            beyond = [at for at in stored if not 0 <= at < len(recorded)]
            in_flight += beyond == [len(recorded)]
            self._count.doubled += len(beyond) if beyond != [len(recorded)] else 0
            other = [
                at for at in stored if at < len(recorded) and not _same(stored[at], recorded[at])
            ]
            if other:
                at = other[0]
                self._problem(
                    f"attempt {attempt.number}: {len(other)} {what} differ, first {at}: "
                    f"{recorded[at]} was recorded and {stored[at]} is stored"
                )
        self._count.in_flight += in_flight
        if in_flight > 1:
            self._problem(f"attempt {attempt.number}: more than one record in flight")
        for words in attempt.problems():
            self._problem(f"attempt {attempt.number}: {words}")
        origin = attempt.origin
        self._steps |= {origin + ordinal: update for ordinal, update in attempt.updates.items()}

    def _ending(self, log: TrainerLog, row: Row[Any]) -> None:
        may_be = {"finished"} if log.finished else {"crashed", GONE}
        if log.finishing:
            may_be |= {"finished"}
        if row.ended not in may_be:
            self._problem(
                f"attempt {row.attempt} is {row.ended}, not {' or '.join(sorted(may_be))}"
            )

    # -- the run --------------------------------------------------------------------------------------------------

    def _totals(self, last: Row[Any]) -> None:
        """Check the counts in the run's row, which the page shows. A resume counts no step twice."""
        run = self._rows(select(runs), runs)[0]
        expected = {
            "updates": len(self._steps),
            "skipped": sum(bool(update.skipped) for update in self._steps.values()),
            "lost": 0,
            "dropped": 0,
            "errors": 0,
            "state": "crashed" if last.ended == GONE else last.ended,
        }
        for name, value in expected.items():
            if (held := getattr(run, name)) != value:
                self._problem(f"its {name} are {held}, not {value}")

    def _rows(self, statement: Any, table: Any) -> list[Row[Any]]:
        return list(self._connection.execute(statement.where(table.c.run_id == self._id)))


class _Attempt:
    """The stored records of one attempt: updates and losses by ordinal."""

    def __init__(self, connection: Connection, run_id: bytes, row: Row[Any]) -> None:
        self._connection = connection
        self._run_id = run_id
        self.number = row.attempt
        self.origin = row.origin
        skipped = defaultdict(list)
        for each in self._of(skips):
            skipped[each.step].append(each.name)
        self._rows = self._recorded(updates.PAGES)
        self.updates = {
            each["step"].item() - self.origin: _update(each, skipped.pop(each["step"].item(), []))
            for each in self._rows
        }
        self._stray_skips = len(skipped)
        self._logged = self._recorded(scalars.PAGES)
        self.losses = dict(
            zip(
                (self._logged["step"] - self.origin).tolist(),
                self._logged["value"].tolist(),
                strict=True,
            )
        )

    def _recorded(self, paged: PagedSeries) -> Rows:
        pages = select(paged.table.c.data).where(paged.table.c.run_id == self._run_id)
        held = [unpack(data, paged.dtype) for data in self._connection.scalars(pages)]
        rows = np.concatenate([np.zeros(0, paged.dtype), *held])
        return rows[rows["attempt"] == self.number]

    def _of(self, table: Any) -> list[Row[Any]]:
        statement = select(table).where(
            table.c.run_id == self._run_id, table.c.attempt == self.number
        )
        return list(self._connection.execute(statement))

    def problems(self) -> Iterator[str]:
        """What is wrong with it, whatever the trainer reported."""
        if self._stray_skips:
            yield f"{self._stray_skips} skips of updates that are not there"
        if len(self._rows) != len(self.updates) or len(self._logged) != len(self.losses):
            yield "two rows of one step"
        for stream, ranges in self._ranges().items():
            if len(ranges) != 1 or ranges[0] != 0:
                yield f"the ledger of stream {stream} is in pieces: they begin at {ranges}"
        sampled = sum(update.sampled for update in self.updates.values())
        if (held := sum(each.samples for each in self._of(gradient_blocks))) != sampled:
            yield f"gradient_blocks hold {held} samples, and {sampled} updates are sampled"

    def _ranges(self) -> dict[int, list[int]]:
        found = defaultdict(list)
        for each in sorted(self._of(ledger), key=lambda row: row.first_seq):
            found[each.stream].append(each.first_seq)
        return found


def _update(row: Any, skipped: list[str]) -> Update:
    return Update(
        scale=float(row["scale"]),
        scale_after=float(row["scale_after"]),
        skipped=tuple(sorted(skipped)),
        sampled=bool(row["sampled"]),
    )


def _same(stored: object, recorded: object) -> bool:
    return stored == recorded or (stored != stored and recorded != recorded)  # noqa: PLR0124 - NaN
