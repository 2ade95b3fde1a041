"""Handmade batches for tests of the server, as a training process would send them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import msgspec
import numpy as np
import numpy.typing as npt

from ampmon import wire
from ampmon.numerics.histogram import BINS, Statistics, no_runs


START = 1_790_000_000_000_000
"""The time of every first record, in microseconds."""

PARAMETERS = (
    wire.Parameter("embedding.weight", (100, 8), "float16"),
    wire.Parameter("head.weight", (8, 10), "float16"),
)

MODULES = (
    wire.Module("embedding", "Embedding"),
    wire.Module("block", "Block"),
    wire.Module("block.mlp", "Linear"),
    wire.Module("encoder", "Encoder", "compiled"),
)
CULPRITS = (wire.Culprit(1, 3, 0), wire.Culprit(0, 1, 0))
STEPPED = {
    skipped: (
        wire.OptimizerStep(
            optimizer="SGD",
            path="plain",
            skipped=skipped,
            culprits=culprits,
            culprit_order="learned",
            culprit_parameters=len(culprits),
        ),
    )
    for skipped, culprits in ((False, ()), (True, CULPRITS))
}
"""The optimizer's step of an update, by whether it was skipped."""
PASSED = (0, 2, 1)
"""Indices of the measured modules, in the order of the forward pass."""


def statistics(
    parameters: int = len(PARAMETERS), *, seed: int = 0, on_grid: bool = True
) -> Statistics:
    """Plausible statistics: 80 elements per parameter, 8 of them zero and the others in five bins."""
    random = np.random.default_rng(seed)
    histogram = np.zeros((parameters, BINS), np.int64)
    histogram[:, 20:25] = random.multinomial(72, np.ones(5) / 5, size=parameters)
    return counted(
        histogram,
        zeros=8,
        off_grid=0 if on_grid else 72,
        amax=random.uniform(1e-5, 1e-4, parameters),
        sum_squares=random.uniform(1e-9, 1e-8, parameters),
    )


def counted(
    histogram: np.ndarray,
    *,
    zeros: npt.ArrayLike = 0,
    inf: npt.ArrayLike = 0,
    nan: npt.ArrayLike = 0,
    off_grid: npt.ArrayLike = 0,
    amax: npt.ArrayLike = 1.0,
    sum_squares: npt.ArrayLike = 1.0,
) -> Statistics:
    """Statistics of n parameters, with each element counted in ``histogram`` [n, 64] or as zero, inf or NaN."""
    n = len(histogram)
    counts = [np.zeros(n, np.int64) + each for each in (zeros, inf, nan)]
    looked = histogram.sum(1) + sum(counts)
    return Statistics(
        parameters=np.arange(n, dtype=np.int32),
        looked=looked,
        zeros=counts[0],
        on_grid=looked - off_grid,
        inf=counts[1],
        nan=counts[2],
        amax=np.zeros(n) + amax,
        sum_squares=np.zeros(n) + sum_squares,
        histogram=histogram,
        run_squares=no_runs(n),
    )


def activations(*, seed: int = 0, **fields: object) -> wire.Activations:
    """Plausible activations of three modules. ``fields`` replace the defaults."""
    made: dict[str, object] = {
        "gradients": statistics(3, seed=seed).renumbered(np.array(PASSED)).to_wire(),
        "elements": np.array([800, 80, 160], "<i8").tobytes(),
        "forward": np.array([2.0, 1000.0, 16.0]).tobytes(),
        **fields,
    }
    return wire.Activations(**made)  # type: ignore[arg-type]


def now() -> int:
    """The time now, in microseconds."""
    return time.time_ns() // 1000


@dataclass
class Trainer:
    """One process on one rank. It numbers its records like a real one, and does not keep what it sent."""

    run_id: UUID = field(default_factory=uuid4)
    rank: int = 0
    scaler: str = "scaler"
    resume_step: int | None = None
    layout: wire.Layout = "replicated"
    world_size: int = 1
    name: str = "run"
    project: str = "default"
    attempt_id: UUID = field(default_factory=uuid4)
    started: int = START

    def __post_init__(self) -> None:
        self._seqs: dict[str, int] = {}
        self._ordinal = 0

    @property
    def attempt(self) -> wire.AttemptHeader:
        return wire.AttemptHeader(
            run_id=self.run_id,
            attempt_id=self.attempt_id,
            project=self.project,
            name=self.name,
            owner="ada",
            started=self.started,
            rank=self.rank,
            world_size=self.world_size,
            resume_step=self.resume_step,
            versions={"torch": "2.13.0"},
            config={"lr": 0.1},
        )

    @property
    def stream(self) -> wire.StreamHeader:
        return wire.StreamHeader(
            stream=self.scaler,
            scaler="GradScaler",
            device="cuda",
            layout=self.layout,
            parameters=PARAMETERS,
            modules=MODULES,
        )

    @property
    def headers(self) -> tuple[wire.Header, ...]:
        return (self.attempt, self.stream)

    def _seq(self, stream: str, lost: int = 0) -> int:
        seq = self._seqs.get(stream, 0) + lost
        self._seqs[stream] = seq + 1
        return seq

    def update(
        self,
        *,
        ordinal: int | None = None,
        skipped: bool = False,
        scale: float = 1024.0,
        **fields: object,
    ) -> wire.Update:
        """The next update: steady, or with ``skipped`` a back-off. Records before an explicit ``ordinal`` are lost."""
        ordinal = self._ordinal if ordinal is None else ordinal
        lost = ordinal - self._ordinal
        self._ordinal = ordinal + 1
        made: dict[str, object] = {
            "stream": self.scaler,
            "seq": self._seq(self.scaler, lost),
            "ordinal": ordinal,
            "time": START + 50_000 * ordinal,
            "scale": scale,
            "scale_after": scale / 2 if skipped else scale,
            "growth_tracker": 0 if skipped else 1,
            "event": "backoff" if skipped else "steady",
            "optimizers": STEPPED[skipped],
            "duration": 50_000.0,
            "cost": 20.0,
            **fields,
        }
        return wire.Update(**made)  # type: ignore[arg-type]

    def updates(
        self, count: int, *, skipped: Sequence[int] = (), sampled: Sequence[int] = ()
    ) -> list[wire.Update]:
        """The next updates. ``skipped`` and ``sampled`` are indices into the returned list."""
        return [
            self.update(
                skipped=index in skipped,
                gradients=statistics(seed=index).to_wire() if index in sampled else None,
                activations=activations(seed=index) if index in sampled else None,
            )
            for index in range(count)
        ]

    def event(self, kind: str, *, stream: str = "", **detail: object) -> wire.Event:
        return wire.Event(
            stream=stream, seq=self._seq(stream), time=START, kind=kind, detail=detail
        )

    def scalars(
        self,
        values: Mapping[str, float | None],
        *,
        kinds: Mapping[str, wire.NonFinite] | None = None,
    ) -> wire.Scalars:
        return wire.Scalars(
            stream=self.scaler,
            seq=self._seq(self.scaler),
            ordinal=max(self._ordinal - 1, 0),
            time=START,
            values=dict(values),
            kinds=dict(kinds or {}),
        )

    def batch(self, records: Sequence[wire.Record] = (), **fields: object) -> wire.Batch:
        """A batch with all headers. ``fields`` replace the defaults."""
        made: dict[str, object] = {
            "schema_version": wire.SCHEMA_VERSION,
            "run_id": self.run_id,
            "attempt_id": self.attempt_id,
            "headers": self.headers,
            "records": tuple(records),
            **fields,
        }
        return wire.Batch(**made)  # type: ignore[arg-type]


def adversarial(
    losses: Sequence[float],
    *,
    skipped: Sequence[int] = (),
    resumed: Trainer | None = None,
) -> tuple[Trainer, wire.Batch]:
    """A GAN: in each iteration, five steps of one scaler and one of another, after which the loss is logged.

    The user's own step is the iteration. ``skipped`` are steps of the first scaler. Records are 10 ms apart, from when
    the first trainer started, which is ``resumed`` if that is given.
    """
    first = resumed or Trainer(name="gan")
    second = Trainer(
        first.run_id,
        scaler="generator",
        resume_step=first.resume_step,
        attempt_id=first.attempt_id,
    )
    records: list[wire.Record] = []
    for iteration, loss in enumerate(losses):
        begun = 5 * iteration
        records += [first.update(skipped=step in skipped) for step in range(begun, begun + 5)]
        own = first.scalars({"critic_loss": loss}), second.scalars({"loss": loss})
        numbered = [msgspec.structs.replace(each, user_step=iteration) for each in own]
        records += [numbered[0], second.update(scale=8.0)]
        records.append(msgspec.structs.replace(numbered[1], ordinal=iteration))
    timed = [
        msgspec.structs.replace(each, time=first.started + 10_000 * index)
        for index, each in enumerate(records)
    ]
    return first, first.batch(timed, headers=(*first.headers, second.stream))
