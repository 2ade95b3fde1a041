"""Reads TensorBoard event files: all scalars, and the updates that a logged loss scale implies."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from ampmon import wire
from ampmon.numerics.formats import FP32
from ampmon_server.exchange.logs import CannotImport, LogLine, Rules
from ampmon_server.exchange.reconstructing import ReconstructedUpdate, reconstruct
from ampmon_server.exchange.sending import (
    STREAM,
    batched,
    header_of,
    printable,
    scalar,
    stream_of,
    updates,
)


_SCALE = re.compile(r"(^|[/_. -])(loss|grad|amp)[_ -]?scale(r)?$|^(scale|.*/scale)$", re.IGNORECASE)
_RULES = Rules("tensorboard", growth_interval=2000)


class _Value(NamedTuple):
    """One scalar. ``time`` is in microseconds since the epoch."""

    tag: str
    step: int
    time: int
    value: float


def event_files(path: Path) -> list[Path]:
    """The event files at a path: the file itself, or those in a folder, sorted by name, so oldest first."""
    if path.is_dir():
        return sorted(path.glob("*tfevents*"))
    return [path] if "tfevents" in path.name else []


def event_batches(files: list[Path], name: str, project: str) -> Iterator[wire.Batch]:
    """Yield the batches of an ended run from its files in order. Raises CannotImport if they hold no scalar."""
    values = [each for file in files for each in _values(file)]
    if not values:
        raise CannotImport(f"{files[0].parent}: the event files hold no scalar")
    scales = [each for each in values if _SCALE.search(each.tag) and abs(each.value) <= FP32.max]
    rows, interval = reconstruct(_marks(scales), _RULES)
    header = header_of(uuid4(), name, project, None, min(each.time for each in values))
    streams = (stream_of(_RULES, rows[0].scale if rows else 1.0, interval),)
    # Steps of event files never start over, so unlike in a text log a jump is not a new attempt.
    ordered = [row._replace(attempt=0) for row in rows]
    yield from batched(header, streams, _records(ordered, values, header, interval))


def _records(
    rows: list[ReconstructedUpdate], values: list[_Value], header: wire.AttemptHeader, interval: int
) -> Iterator[wire.Record]:
    laid = list(updates(rows, 0, header, interval))
    yield from laid
    for seq, each in enumerate(values, start=len(laid)):
        name = printable(each.tag) or "value"
        yield scalar(STREAM, seq, max(each.step, 0), each.time, name, each.value)
    yield wire.Event(stream="", seq=0, time=max(each.time for each in values), kind="finish")


def _values(file: Path) -> Iterator[_Value]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util import tensor_util

    try:
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                array = tensor_util.make_ndarray(value.tensor)
                if array.size == 1 and array.dtype.kind in "fiu":
                    number = float(array.reshape(()))
                    yield _Value(value.tag, event.step, _time(event.wall_time), number)
    except Exception as error:  # also protobuf's
        raise CannotImport(f"{file}: the file is damaged ({error})") from None


def _time(seconds: float) -> int:
    """Microseconds since the epoch. A time that is no number or before it is 0."""
    return 0 if math.isnan(seconds) else int(min(max(seconds * 1e6, 0.0), wire.COUNT_MAX))


def _marks(scales: list[_Value]) -> list[LogLine]:
    """Marks of the first tag. If it counts samples, as DeepSpeed's does, divide by the steps' common divisor."""
    mine = [each for each in scales if each.tag == scales[0].tag]
    steps = sorted({each.step: each for each in mine}.values(), key=lambda each: each.step)
    sampled = bool(mine) and "samples" in mine[0].tag.lower()
    size = reduce(math.gcd, (each.step for each in steps), 0) if sampled else 1
    return [LogLine(0, each.step // max(size, 1), each.value, time=each.time) for each in steps]
