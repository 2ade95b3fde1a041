"""A made-up run posted to a server record by record, as a sender would. Nothing is trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID, uuid4

import msgspec
import numpy as np
from msgspec.structs import replace

from ampmon import wire
from ampmon.numerics.histogram import BINS, EXPONENT_MIN
from batches import Trainer, counted, now
from serving import Server


PARAMETERS = ("blocks.0.attn.weight", "blocks.0.mlp.weight", "head.weight")
NUMEL = 10_000
SPACING_US = 1000
OWN: dict[str, Any] = {"owner": "tester", "versions": {}, "config": {}}


def post(server: Server, batch: wire.Batch) -> wire.Ack:
    """Post a batch, which the server must accept."""
    answer = server.request(
        "POST",
        "/api/v1/ingest",
        body=wire.encode(batch),
        headers={"Content-Type": "application/msgpack"},
    )
    assert answer.status == 200, answer.data
    return msgspec.json.decode(answer.data, type=wire.Ack)


class PostedRun:
    """One process with one scaler, whose updates happen when the test calls for them."""

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
        self.started = now()
        self.scale = 65536.0
        self._trainer = Trainer(
            run_id=self.run_id,
            scaler="default",
            name=name,
            project="tests",
            started=self.started,
        )
        self._headers = (
            replace(self._trainer.attempt, **{**OWN, **header}),
            replace(
                self._trainer.stream,
                device="cpu",
                parameters=tuple(
                    wire.Parameter(name, (100, 100), "float32") for name in parameters
                ),
                modules=(),
            ),
        )
        self._last = len(parameters) - 1
        self.event("init")

    @property
    def path(self) -> str:
        return f"/runs/{self.run_id}"

    def updates(self, count: int = 1, *, skipped: bool = False, sampled: bool = True) -> None:
        """Post ``count`` updates. With ``skipped``, each is skipped for an inf in the last parameter."""
        records = []
        for _ in range(count):
            update = self._trainer.update(
                skipped=skipped,
                scale=self.scale,
                growth_tracker=0,
                optimizers=(self._step(skipped),),
                duration=float(SPACING_US),
                cost=2.0,
                gradients=self._gradients() if sampled else None,
            )
            records.append(replace(update, time=self.started + update.ordinal * SPACING_US))
            self.scale = update.scale_after
        self._post(*records)

    def logs(self, values: Iterable[Mapping[str, float]], *, skipped: bool = False) -> None:
        """Post one update per mapping of logged values."""
        records: list[wire.Record] = []
        step = (self._step(skipped),)
        for each in values:
            update = self._trainer.update(
                scale=self.scale, growth_tracker=0, skipped=skipped, optimizers=step
            )
            self.scale = update.scale_after
            time = self.started + update.ordinal * SPACING_US
            records += [
                replace(each_of, time=time) for each_of in (update, self._trainer.scalars(each))
            ]
        self._post(*records)

    def grow(self) -> None:
        """Double the scale of the next update."""
        self.scale *= 2

    def event(self, kind: str, **detail: object) -> None:
        self._post(replace(self._trainer.event(kind, **detail), time=now()))

    def lose(self, count: int) -> None:
        """Lose the next ``count`` records in transit."""
        self._trainer.updates(count)

    def _step(self, skipped: bool) -> wire.OptimizerStep:
        if not skipped:
            return wire.OptimizerStep(optimizer="AdamW", path="plain")
        return wire.OptimizerStep(
            optimizer="AdamW",
            path="plain",
            skipped=True,
            culprits=(wire.Culprit(self._last, 3, 0),),
            culprit_order="learned",
            culprit_parameters=1,
        )

    def _gradients(self) -> wire.Gradients:
        """Gradients whose elements are spread over binades that move up with the scale."""
        histogram = np.zeros((self._last + 1, BINS), np.int64)
        top = int(np.log2(self.scale)) - 6
        for below in range(20):
            exponent = max(top - below, -24)
            histogram[:, exponent - EXPONENT_MIN] += NUMEL // 25
        zeros = NUMEL - histogram.sum(1)
        return counted(histogram, zeros=zeros, amax=2.0**top, sum_squares=4.0**top).to_wire()

    def _post(self, *records: wire.Record) -> None:
        post(self.server, self._trainer.batch(records, headers=self._headers))
