"""The load of many trainers: batches encoded before the clock starts, and clients that post them as senders do.

Each client is a thread with its own connection, run and attempt. It waits and retries as a sender does if the server is
overloaded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import NamedTuple, TypeAlias
from uuid import UUID, uuid4

import msgspec
import numpy as np

from ampmon import wire
from ampmon.errors import Unreachable
from ampmon.sender.backoff import LOCAL_FIRST_S, LOCAL_MAX_S, Backoff
from ampmon.transport import HttpTransport
from ampmon_server.model.aggregates.updates import EVENTS
from benchmarks import processor
from benchmarks.store.samples import Real
from benchmarks.store.track import BACKOFF, track


Client: TypeAlias = Callable[[float], tuple[int, int]]
"""Sends until a `time.perf_counter` deadline. Returns the records acknowledged, and how often it had to wait."""

STREAM = "scaler"
PARAMETERS = tuple(wire.Parameter(f"layers.{n}.weight", (768, 768), "float32") for n in range(3))
"""Parameters of a model whose gradients are not sampled. Culprits refer to them."""

STARTED = 1_790_000_000_000_000


@dataclass(frozen=True, slots=True)
class Work:
    """One client's encoded batches, and the number of records in each."""

    run_id: UUID
    batches: list[bytes]
    records: int


class Sent(NamedTuple):
    """Records acknowledged, the seconds that took, and how often a server asked a client to retry later.

    ``processor_us`` is the processor time for each record of the processes that were named to `send`, in us.
    """

    records: int
    seconds: float
    refused: int
    processor_us: float | None = None

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.records / self.seconds


def plain(batches: int, size: int, real: Real | None = None) -> Work:
    """Updates of a new run, none sampled. The model is that of ``real`` if given."""
    parameters = PARAMETERS if real is None else real.parameters
    return _work(updates_of(batches * size), size, parameters)


def sampled(batches: int, size: int, real: Real, every: int = 1) -> Work:
    """Updates of a new run, one in ``every`` sampled. No two samples of a batch are alike."""
    chance = np.random.default_rng(0)
    gradients = cycle([real.varied(chance).to_wire() for _ in range(max(size // every, 1))])
    updates = updates_of(batches * size)
    for ordinal in range(0, len(updates), every):
        updates[ordinal] = msgspec.structs.replace(updates[ordinal], gradients=next(gradients))
    return _work(updates, size, real.parameters)


def send(
    urls: Sequence[str],
    token: str,
    works: Sequence[Work],
    limit_s: float,
    processes: Sequence[int] = (),
) -> Sent:
    """Have a client send each work, all at once, for ``limit_s`` seconds or until all has arrived. Blocks.

    Clients are distributed over the servers at ``urls``. The processor time of ``processes`` is measured meanwhile.
    """
    clients = [
        partial(_client, url, token, work) for url, work in zip(cycle(urls), works, strict=False)
    ]
    before = processor.seconds(*processes)
    sent = at_once(clients, limit_s)
    after = processor.seconds(*processes)
    if not processes or before is None or after is None or not sent.records:
        return sent
    return sent._replace(processor_us=1e6 * (after - before) / sent.records)


def at_once(clients: Sequence[Client], limit_s: float) -> Sent:
    """Run clients, each on its own thread, for ``limit_s`` seconds from a common start. Blocks."""
    ready = threading.Barrier(len(clients))

    def run(client: Client) -> _Done:
        ready.wait()
        began = time.perf_counter()
        return _Done(*client(began + limit_s), began, time.perf_counter())

    with ThreadPoolExecutor(len(clients)) as threads:
        done = list(threads.map(run, clients))
    seconds = max(each.ended for each in done) - min(each.began for each in done)
    return Sent(sum(each.records for each in done), seconds, sum(each.refused for each in done))


class _Done(NamedTuple):
    records: int
    refused: int
    began: float
    ended: float


def _client(url: str, token: str, work: Work, deadline: float) -> tuple[int, int]:
    transport = HttpTransport(url, token=token)
    refused = records = 0
    for batch in work.batches:
        taken, waits = delivered(transport, batch, deadline)
        refused += waits
        records += work.records if taken else 0
    transport.close()
    return records, refused


def delivered(transport: HttpTransport, batch: bytes, deadline: float) -> tuple[bool, int]:
    """Send a batch until the server takes it, as a sender does, or until a `time.perf_counter` deadline.

    Returns whether the server took it, and how often it had to wait.
    """
    backoff = Backoff(time.monotonic, first_s=LOCAL_FIRST_S, max_s=LOCAL_MAX_S)
    waits = 0
    while time.perf_counter() < deadline:
        try:
            transport.send(batch)
        except Unreachable as error:
            waits += 1
            backoff.failed(error.retry_after_s)
            time.sleep(backoff.remaining_s())
        else:
            return True, waits
    return False, waits


def updates_of(count: int) -> list[wire.Update]:
    """The first ``count`` updates of a training, none sampled."""
    took = wire.OptimizerStep(optimizer="AdamW", path="unscaled")
    skipped = msgspec.structs.replace(took, skipped=True, culprits=(wire.Culprit(2, 31, 0),))
    return [
        wire.Update(
            stream=STREAM,
            seq=ordinal,
            ordinal=ordinal,
            time=STARTED + 50_000 * ordinal,
            scale=scale,
            scale_after=after,
            growth_tracker=tracker,
            event=EVENTS[event],  # type: ignore[arg-type]
            optimizers=(skipped if event == BACKOFF else took,),
            duration=50_000.0 + ordinal % 997,
            cost=11.0 + ordinal % 7,
        )
        for ordinal, (scale, after, tracker, event) in enumerate(track(count).moves())
    ]


def headers_of(
    run_id: UUID, attempt_id: UUID, parameters: tuple[wire.Parameter, ...]
) -> tuple[wire.Header, ...]:
    """The headers that a training sends before its updates."""
    return (
        wire.AttemptHeader(
            run_id=run_id,
            attempt_id=attempt_id,
            project="benchmark",
            name="ingest",
            owner="benchmark",
            started=STARTED,
        ),
        wire.StreamHeader(stream=STREAM, scaler="GradScaler", device="cuda", parameters=parameters),
    )


def _work(
    updates: Sequence[wire.Update], size: int, parameters: tuple[wire.Parameter, ...]
) -> Work:
    run_id, attempt_id = uuid4(), uuid4()
    headers = headers_of(run_id, attempt_id, parameters)
    batches = [
        wire.encode(
            wire.Batch(
                schema_version=wire.SCHEMA_VERSION,
                run_id=run_id,
                attempt_id=attempt_id,
                headers=headers if not first else (),
                records=tuple(updates[first : first + size]),
            )
        )
        for first in range(0, len(updates), size)
    ]
    return Work(run_id, batches, size)
