"""Makes batches of what was read from files, and sends them to a server: a new run each time."""

from __future__ import annotations

import getpass
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from uuid import UUID, uuid4

from ampmon import wire
from ampmon.transport import HttpTransport
from ampmon_server.importing.laying import Laid, growth_interval, lay_out
from ampmon_server.importing.logs import Log


RECORDS = 5000
STREAM = "default"


def send(url: str, token: str, batches: Iterable[wire.Batch]) -> int:
    """Send batches to a server, one after another; how many records they held. Raises AmpmonError."""
    transport, records = HttpTransport(url, token=token), 0
    try:
        for batch in batches:
            transport.send(wire.encode(batch), len(batch.records))
            records += len(batch.records)
    finally:
        transport.close()
    return records


def log_batches(log: Log, name: str, project: str, now: int | None = None) -> Iterator[wire.Batch]:
    """The batches of a log: a run that has ended. Raises TooLong."""
    rows = lay_out(log.marks, log.rules)
    run_id, ended = uuid4(), time.time_ns() // 1000 if now is None else now
    interval = growth_interval(log.marks, rows, log.rules)
    stream = _stream(log, rows[0], interval)
    for attempt, group in groupby(rows, key=lambda row: row.attempt):
        header = _attempt(run_id, name, project, attempt, group_rows := list(group), ended)
        last = attempt == rows[-1].attempt
        records = _records(group_rows, header, interval, finished=last)
        yield from batched(header, (stream,), records)


def batched(
    header: wire.AttemptHeader,
    streams: Sequence[wire.StreamHeader],
    records: Iterable[wire.Record],
) -> Iterator[wire.Batch]:
    """Records of an attempt, a few thousand in each batch."""
    rest = iter(records)
    while some := tuple(islice(rest, RECORDS)):
        yield wire.Batch(
            schema_version=wire.SCHEMA_VERSION,
            run_id=header.run_id,
            attempt_id=header.attempt_id,
            headers=(header, *streams),
            records=some,
        )


def owner() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no such user
        return "unknown"


def _attempt(
    run_id: UUID, name: str, project: str, attempt: int, rows: Sequence[Laid], ended: int
) -> wire.AttemptHeader:
    return wire.AttemptHeader(
        run_id=run_id,
        attempt_id=uuid4(),
        project=project,
        name=name,
        owner=owner(),
        started=min(rows[0].time or ended, ended),
        resume_step=rows[0].step if attempt else None,
        tags=("imported",),
    )


def _stream(log: Log, first: Laid, interval: int) -> wire.StreamHeader:
    rules = log.rules
    more = f"(hysteresis={rules.hysteresis}, min_scale={rules.min_scale:g})"
    plain = rules.hysteresis == 1 and not rules.min_scale
    return wire.StreamHeader(
        stream=STREAM,
        scaler=f"{rules.scaler}{'' if plain else more}",
        device=rules.device,
        init_scale=first.scale,
        growth_interval=interval,
    )


def _records(
    rows: Sequence[Laid], header: wire.AttemptHeader, interval: int, *, finished: bool
) -> Iterator[wire.Record]:
    seq, origin, ended = 0, rows[0].step, header.started
    # How near the scale is to its next growth is a guess: it is never told to be past it.
    most = max(interval - 1, 0)
    for row in rows:
        ordinal, at = row.step - origin, row.time or ended
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
    if finished:
        yield wire.Event(stream="", seq=0, time=rows[-1].time or ended, kind="finish")


def scalar(stream: str, seq: int, ordinal: int, at: int, name: str, value: float) -> wire.Scalars:
    """One value; what is not finite as its kind."""
    if math.isfinite(value):
        return wire.Scalars(stream=stream, seq=seq, ordinal=ordinal, time=at, values={name: value})
    kind: wire.NonFinite = "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return wire.Scalars(
        stream=stream, seq=seq, ordinal=ordinal, time=at, values={name: None}, kinds={name: kind}
    )


def name_of(path: Path) -> str:
    """A file's name as a run's."""
    return "".join(each if each.isprintable() else "-" for each in path.stem)[:256] or "log"
