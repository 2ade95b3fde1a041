"""The batches that a planned run's processes send, encoded as by a sender. Each is due at its last update."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np

from ampmon import wire
from ampmon_server.model.aggregates.updates import EVENTS
from benchmarks.store.samples import SCALE, Real, shifted
from benchmarks.store.track import BACKOFF, INTERVAL, Track, track
from campaigns.year.population import Planned, attempt_id


BATCH = 5000
"""The most updates in a batch."""

SAMPLED_EVERY, LOGGED_EVERY = 200, 10
RESTLESS_INTERVAL = 60
_SAMPLES = 16
_RESTART_US = 60_000_000
STREAM = "scaler"


class Piece(NamedTuple):
    """One batch to send: when it is due, its run, attempt and rank, its number among theirs, and its size."""

    due: int
    run: int
    attempt: int
    rank: int
    batch: int
    updates: int


def pieces(run: Planned) -> Iterator[Piece]:
    """Every batch that a run sends."""
    for attempt, (first, stop) in enumerate(run.attempts):
        for rank in range(run.ranks):
            for batch, begin in enumerate(range(first, stop, BATCH)):
                updates = min(BATCH, stop - begin)
                due = time_of(run, attempt, begin + updates)
                yield Piece(due, run.number, attempt, rank, batch, updates)


def time_of(run: Planned, attempt: int, step: int) -> int:
    """The time of an attempt's step. A resumed attempt starts a minute after the one before ended."""
    lost = 0 if attempt == 0 else (run.broken - run.resumed) * run.period + _RESTART_US
    return run.started + step * run.period + lost


def course_of(run: Planned) -> Track:
    """The course of a run's scale, from its first step to its last."""
    interval = RESTLESS_INTERVAL if run.health == "restless" else INTERVAL
    course = track(run.updates, seed=run.number, interval=interval)
    return _diverged(course) if run.health == "diverged" else course


class Samples:
    """Encoded gradients of any step and scale, each made once. Sixteen samples repeat."""

    def __init__(self, real: Real) -> None:
        self.parameters = real.parameters
        self._real = real
        self._made = lru_cache(maxsize=256)(self._make)

    def at(self, step: int, scale: float) -> wire.Gradients:
        binades = int(np.clip(round(np.log2(scale / SCALE)), -40, 20))
        return self._made(step // SAMPLED_EVERY % _SAMPLES, binades)

    def _make(self, number: int, binades: int) -> wire.Gradients:
        return shifted(self._real.varied(np.random.default_rng(number)), binades).to_wire()


@dataclass(frozen=True, slots=True)
class Training:
    """A run's course, from which any of its batches can be made again exactly."""

    run: Planned
    owner: str
    course: Track
    samples: Samples

    @classmethod
    def of(cls, run: Planned, owner: str, samples: Samples) -> Training:
        return cls(run, owner, course_of(run), samples)

    def batch(self, piece: Piece) -> bytes:
        """The encoded batch."""
        first, stop = self.run.attempts[piece.attempt]
        begin = first + piece.batch * BATCH
        last = begin + piece.updates == stop
        records = self._records(piece, first, begin)
        ended = None
        if last:
            records += self._ending(piece)
            ended = self._is_killed(piece)
        headers = self._headers(piece) if piece.batch == 0 else ()
        batch = wire.Batch(
            schema_version=wire.SCHEMA_VERSION,
            run_id=self.run.run_id,
            attempt_id=attempt_id(self.run, piece.attempt, piece.rank),
            headers=headers,
            records=tuple(records),
            ended="crashed" if ended else None,
        )
        return wire.encode(batch)

    def _records(self, piece: Piece, first: int, begin: int) -> list[wire.Record]:
        within = slice(begin, begin + piece.updates)
        period = self.run.period
        started = time_of(self.run, piece.attempt, 0)
        records: list[wire.Record] = []
        # A logged value takes a seq of the stream, too: one after each tenth update.
        for step, (scale, after, tracker, event) in enumerate(self.course.moves(within), begin):
            ordinal = step - first
            seq = ordinal + -(-ordinal // LOGGED_EVERY)
            sampled = piece.rank == 0 and step % SAMPLED_EVERY == 0
            time = started + step * period
            records.append(
                wire.Update(
                    stream=STREAM,
                    seq=seq,
                    ordinal=ordinal,
                    time=time,
                    scale=scale,
                    scale_after=after,
                    growth_tracker=tracker,
                    event=EVENTS[event],  # type: ignore[arg-type]
                    optimizers=_SKIPPED if event == BACKOFF else _TOOK,
                    duration=period + step % 997,
                    cost=11.0 + step % 7,
                    gradients=self.samples.at(step, scale) if sampled else None,
                )
            )
            if ordinal % LOGGED_EVERY == 0:
                loss = 2 + 9 / (1 + step / 1e4)
                records.append(
                    wire.Scalars(
                        stream=STREAM,
                        seq=seq + 1,
                        ordinal=ordinal,
                        time=time,
                        values={"loss": loss},
                    )
                )
        return records

    def _ending(self, piece: Piece) -> list[wire.Record]:
        """The event by which a process reports its own end; none if it was killed."""
        last_attempt = piece.attempt == len(self.run.attempts) - 1
        fate = self.run.fate if last_attempt else "killed"
        if fate == "killed":
            return []
        kind = "exception" if fate == "crashed" else "finish"
        stop = self.run.attempts[piece.attempt][1]
        time = time_of(self.run, piece.attempt, stop)
        return [wire.Event(stream="", seq=0, time=time, kind=kind)]

    def _is_killed(self, piece: Piece) -> bool:
        """Whether a sender reports that the process was killed. It cannot if its host is gone too."""
        return self.run.fate == "resumed" and piece.attempt == 0

    def _headers(self, piece: Piece) -> tuple[wire.Header, ...]:
        run = self.run
        attempt = wire.AttemptHeader(
            run_id=run.run_id,
            attempt_id=attempt_id(run, piece.attempt, piece.rank),
            project=run.project,
            name=run.name,
            owner=self.owner,
            started=time_of(run, piece.attempt, run.attempts[piece.attempt][0]),
            rank=piece.rank,
            world_size=run.ranks,
            host=f"node-{run.number % 16:02d}",
            pid=1000 + run.number,
            resume_step=run.resumed if piece.attempt else None,
            tags=run.tags,
            config={"lr": 3e-4, "batch_size": 512},
            versions={"torch": "2.13.0"},
        )
        stream = wire.StreamHeader(
            stream=STREAM,
            scaler="GradScaler",
            device="cuda",
            growth_interval=RESTLESS_INTERVAL if run.health == "restless" else INTERVAL,
            parameters=self.samples.parameters,
        )
        return attempt, stream


_TOOK = (wire.OptimizerStep(optimizer="AdamW", path="unscaled"),)
_SKIPPED = (
    msgspec.structs.replace(
        _TOOK[0],
        skipped=True,
        culprits=(wire.Culprit(1, 31, 0),),
        culprit_order="learned",
        culprit_parameters=1,
    ),
)


def _diverged(course: Track) -> Track:
    """Let the scale fall with every update at the end, until it is dead."""
    count = min(150, len(course))
    scale, after = course.scale.copy(), course.scale_after.copy()
    tracker, event = course.growth_tracker.copy(), course.event.copy()
    falling = scale[-count] * 0.5 ** np.arange(count + 1)
    scale[-count:], after[-count:] = falling[:-1], falling[1:]
    tracker[-count:] = 0
    event[-count:] = BACKOFF
    return Track(scale, after, tracker, event)


def by_due(runs: Sequence[Planned]) -> list[Piece]:
    """Every batch of a year, in the order in which they are due."""
    return sorted(piece for run in runs for piece in pieces(run))
