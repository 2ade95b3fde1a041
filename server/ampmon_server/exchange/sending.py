"""Builds batches from what was read from files, and sends them to a server, each time as a new run."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from pathlib import Path
from uuid import UUID, uuid4

from ampmon import wire
from ampmon.config import route_to
from ampmon.identity.attempt import owner
from ampmon.transport import HttpTransport
from ampmon_server.exchange.logs import Log, Rules
from ampmon_server.exchange.reconstructing import ReconstructedUpdate, reconstruct


RECORDS = 5000
STREAM = "default"


def send(url: str, token: str, batches: Iterable[wire.Batch]) -> int:
    """Send batches to a server, one after another. Return the number of records. Raises AmpmonError."""
    transport, records = HttpTransport(url, token=token, route=route_to(url)), 0
    try:
        for batch in batches:
            transport.send(wire.encode(batch))
            records += len(batch.records)
    finally:
        transport.close()
    return records


def log_batches(log: Log, name: str, project: str, now: int | None = None) -> Iterator[wire.Batch]:
    """Yield the batches of a log, as a run that has ended. Raises CannotImport."""
    rows, interval = reconstruct(log.marks, log.rules)
    run_id, ended = uuid4(), time.time_ns() // 1000 if now is None else now
    stream = stream_of(log.rules, rows[0].scale, interval)
    for attempt, group in groupby(rows, key=lambda row: row.attempt):
        mine = list(group)
        origin = mine[0].step
        at = min(mine[0].time or ended, ended)
        header = header_of(run_id, name, project, origin if attempt else None, at)
        records: Iterable[wire.Record] = updates(mine, origin, header, interval)
        if attempt == rows[-1].attempt:
            finish = wire.Event(stream="", seq=0, time=mine[-1].time or ended, kind="finish")
            records = chain(records, [finish])
        yield from batched(header, (stream,), records)


def batched(
    header: wire.AttemptHeader,
    streams: Sequence[wire.StreamHeader],
    records: Iterable[wire.Record],
) -> Iterator[wire.Batch]:
    """Yield the records of an attempt in batches of `RECORDS`."""
    rest = iter(records)
    while some := tuple(islice(rest, RECORDS)):
        yield batch_of(header, streams, some)


def batch_of(
    header: wire.AttemptHeader,
    streams: Sequence[wire.StreamHeader],
    records: Sequence[wire.Record],
) -> wire.Batch:
    """Return records of an attempt with all its headers."""
    return wire.Batch(
        schema_version=wire.SCHEMA_VERSION,
        run_id=header.run_id,
        attempt_id=header.attempt_id,
        headers=(header, *streams),
        records=tuple(records),
    )


def header_of(
    run_id: UUID, name: str, project: str, resume_step: int | None, started: int
) -> wire.AttemptHeader:
    """The header of one attempt of an imported run."""
    return wire.AttemptHeader(
        run_id=run_id,
        attempt_id=uuid4(),
        project=project,
        name=name,
        owner=owner(),
        started=started,
        resume_step=resume_step,
        tags=("imported",),
    )


def stream_of(rules: Rules, init_scale: float, interval: int) -> wire.StreamHeader:
    """The stream header of a log's scaler, described as `ampmon.Policy` would describe it."""
    more = f"(hysteresis={rules.hysteresis}, min_scale={rules.min_scale:g})"
    plain = rules.hysteresis == 1 and not rules.min_scale
    return wire.StreamHeader(
        stream=STREAM,
        scaler=f"{rules.scaler}{'' if plain else more}",
        device=rules.device,
        init_scale=init_scale,
        growth_interval=interval,
    )


def updates(
    rows: Sequence[ReconstructedUpdate], origin: int, header: wire.AttemptHeader, interval: int
) -> Iterator[wire.Record]:
    """Yield the records of laid out updates, and of their losses."""
    # The growth tracker is a guess, so keep it below the interval.
    seq, most = 0, max(interval - 1, 0)
    for row in rows:
        ordinal, at = row.step - origin, row.time or header.started
        yield wire.Update(
            stream=STREAM,
            seq=seq,
            ordinal=ordinal,
            time=at,
            scale=row.scale,
            scale_after=row.after,
            growth_tracker=min(row.tracker, most),
            event=row.event,
            optimizers=(
                wire.OptimizerStep(optimizer="optimizer", path="plain", skipped=row.skipped),
            ),
            fresh=ordinal == 0,
        )
        seq += 1
        if row.loss is not None:
            yield scalar(STREAM, seq, ordinal, at, "loss", row.loss)
            seq += 1


def scalar(
    stream: str,
    seq: int,
    ordinal: int,
    at: int,
    name: str,
    value: float,
    user_step: int | None = None,
) -> wire.Scalars:
    """A record of one value. A value that is not finite is stored as its kind."""
    kind: wire.NonFinite = "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    finite = math.isfinite(value)
    return wire.Scalars(
        stream=stream,
        seq=seq,
        ordinal=ordinal,
        time=at,
        values={name: value if finite else None},
        kinds={} if finite else {name: kind},
        user_step=user_step,
    )


def name_of(path: Path) -> str:
    """Turn a file's name into a run's name."""
    return printable(path.stem) or "log"


def printable(name: str) -> str:
    """Return a name that a record can have, or an empty string."""
    return "".join(each if each.isprintable() else "-" for each in name)[:256]
