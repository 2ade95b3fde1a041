"""A run that a test makes up and posts to a server, record by record, as a sender would. Trains nothing."""

from __future__ import annotations

import time
from uuid import UUID, uuid4

import numpy as np

from ampmon import wire
from ampmon.histogram import BINS, EXPONENT_MIN, Statistics, no_runs
from serving import Server


PARAMETERS = ("blocks.0.attn.weight", "blocks.0.mlp.weight", "head.weight")
NUMEL = 10_000


def post(server: Server, batch: wire.Batch) -> None:
    """Post a batch, which must be taken."""
    answer = server.request(
        "POST",
        "/api/v1/ingest",
        body=wire.encode(batch),
        headers={"Content-Type": "application/msgpack"},
    )
    assert answer.status == 200, answer.data


class PostedRun:
    """One process with one scaler, whose updates happen when the test says so."""

    def __init__(
        self,
        server: Server,
        name: str = "made up",
        parameters: tuple[str, ...] = PARAMETERS,
        run_id: UUID | None = None,
        **header: object,
    ) -> None:
        self.server = server
        self.run_id = run_id or uuid4()
        self.started = time.time_ns() // 1000
        self.scale = 65536.0
        self._ordinal = 0
        self._seq = {"": 0, "default": 0}
        self._attempt = wire.AttemptHeader(
            run_id=self.run_id,
            attempt_id=uuid4(),
            name=name,
            started=self.started,
            **{"project": "tests", "owner": "tester", **header},  # type: ignore[arg-type]
        )
        self._stream = wire.StreamHeader(
            stream="default",
            scaler="GradScaler",
            device="cpu",
            parameters=tuple(wire.Parameter(each, (100, 100), "float32") for each in parameters),
        )
        self.event("init")

    @property
    def path(self) -> str:
        return f"/runs/{self.run_id}"

    def updates(
        self, count: int = 1, *, skipped: bool = False, sampled: bool = True, spacing_us: int = 1000
    ) -> None:
        """Post ``count`` updates, each skipped by an inf in the last parameter if it is to be."""
        records = []
        for _ in range(count):
            after = self.scale / 2 if skipped else self.scale
            records.append(
                wire.Update(
                    stream="default",
                    seq=self._next("default"),
                    ordinal=self._ordinal,
                    time=self.started + self._ordinal * spacing_us,
                    scale=self.scale,
                    scale_after=after,
                    growth_tracker=0,
                    event="backoff" if skipped else "steady",
                    optimizers=(self._step(skipped),),
                    duration=float(spacing_us),
                    cost=2.0,
                    gradients=self._gradients() if sampled else None,
                )
            )
            self._ordinal += 1
            self.scale = after
        self._post(*records)

    def grow(self) -> None:
        """The next update has twice the scale."""
        self.scale *= 2

    def event(self, kind: str, **detail: object) -> None:
        """Post an event of the process."""
        self._post(
            wire.Event(
                stream="",
                seq=self._next(""),
                time=time.time_ns() // 1000,
                kind=kind,
                detail=dict(detail),
            )
        )

    def lose(self, count: int) -> None:
        """Let the next ``count`` records get lost on their way."""
        self._seq["default"] += count
        self._ordinal += count

    def _next(self, stream: str) -> int:
        self._seq[stream] += 1
        return self._seq[stream] - 1

    def _step(self, skipped: bool) -> wire.OptimizerStep:
        if not skipped:
            return wire.OptimizerStep(optimizer="AdamW", path="plain")
        last = len(self._stream.parameters) - 1
        return wire.OptimizerStep(
            optimizer="AdamW",
            path="plain",
            skipped=True,
            culprits=(wire.Culprit(last, 3, 0),),
            culprit_order="learned",
            culprit_parameters=1,
        )

    def _gradients(self) -> wire.Gradients:
        """Each parameter's elements spread over binades that move up with the scale."""
        n = len(self._stream.parameters)
        histogram = np.zeros((n, BINS), np.int64)
        top = int(np.log2(self.scale)) - 6
        for below in range(20):
            exponent = max(top - below, -24)
            histogram[:, exponent - EXPONENT_MIN] += NUMEL // 25
        zeros = NUMEL - histogram.sum(1)
        nothing = np.zeros(n, np.int64)
        looked = np.full(n, NUMEL)
        return Statistics(
            parameters=np.arange(n, dtype=np.int32),
            looked=looked,
            zeros=zeros,
            on_grid=looked,
            inf=nothing,
            nan=nothing,
            amax=np.full(n, 2.0**top),
            sum_squares=np.full(n, 4.0**top),
            histogram=histogram,
            run_squares=no_runs(n),
        ).to_wire()

    def _post(self, *records: wire.Record) -> None:
        batch = wire.Batch(
            schema_version=wire.SCHEMA_VERSION,
            run_id=self.run_id,
            attempt_id=self._attempt.attempt_id,
            headers=(self._attempt, self._stream),
            records=records,
        )
        post(self.server, batch)
