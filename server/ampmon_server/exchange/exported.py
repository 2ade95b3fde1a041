"""Reads files of `ampmon export` (Parquet, Arrow or JSON lines) back into the records they were made from.

Every row of the lowest rank comes back unchanged, with two exceptions. If rows are missing, events and attempts have
other numbers. The module in which an overflow began backward is lost with the activations, which an export does not
hold, nor the configuration of the run.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import numpy as np
import orjson

from ampmon import wire
from ampmon.numerics.histogram import Statistics
from ampmon_server.exchange.formats import COLUMNS, TABLES, Table
from ampmon_server.exchange.logs import CannotImport
from ampmon_server.exchange.sending import batch_of, batched, header_of, scalar


Row: TypeAlias = Mapping[str, Any]
Files: TypeAlias = Mapping[Table, Path]
SUFFIXES = frozenset({".parquet", ".arrow", ".jsonl"})
_READ = 4096


def tables_of(paths: Sequence[Path]) -> Files:
    """Return the file of each table. Raises CannotImport, also if no file holds the updates."""
    found: dict[Table, Path] = {}
    for path in paths:
        names = set(next(iter(_rows(path)), {}))
        table = next((each for each in TABLES if names == set(COLUMNS[each])), None)
        if table is None and names:
            raise CannotImport(f"{path}: its columns do not match an ampmon export")
        if table is not None:
            found[table] = path
    if "updates" not in found:
        raise CannotImport("name the exported updates too: the other rows refer to them")
    return found


def _rows(path: Path) -> Iterator[Row]:
    """Yield a file's rows. Raises CannotImport if it is damaged."""
    if path.suffix == ".jsonl":
        yield from _json_rows(path)
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if path.suffix == ".parquet":
            batches: Iterable[Any] = pq.ParquetFile(path).iter_batches(_READ)
        else:
            batches = pa.ipc.open_stream(path)
        for batch in batches:
            yield from batch.to_pylist()
    except pa.ArrowInvalid as error:
        raise CannotImport(f"{path}: the file is damaged ({error})") from None


def _json_rows(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = orjson.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise CannotImport(f"{path}: line {number} is not a JSON object")
            yield row


@dataclass
class _Scaler:
    """What the rows show about a scaler: its policy, and its parameters in order of appearance."""

    name: str
    init_scale: float
    factors: dict[str, float] = field(default_factory=dict)
    interval: int = 2000
    step: int = -2
    """The step of the newest row noted, and its growth tracker."""
    tracker: int = 0
    sample: int | None = None
    parameters: dict[str, wire.Parameter] = field(default_factory=dict)
    modules: dict[str, int] = field(default_factory=dict)
    sampled: set[int] = field(default_factory=set)
    attempts: list[tuple[int, int]] = field(default_factory=list)
    """The steps from which on the rows are of another attempt, and that attempt."""

    def note(self, row: Row) -> None:
        if row["step"] <= self.step:
            raise CannotImport(
                f"step {row['step']} of scaler {self.name!r} is there twice or out of order"
            )
        if not self.attempts or self.attempts[-1][1] != row["attempt"]:
            self.attempts.append((row["step"], row["attempt"]))
        event = row["event"]
        if event in {"grow", "backoff"} and row["scale"] and row["scale_after"]:
            self.factors[event] = row["scale_after"] / row["scale"]
        if event == "grow" and row["step"] == self.step + 1:
            self.interval = self.tracker + 1
        self.step, self.tracker = row["step"], row["growth_tracker"]

    def place(self, name: str) -> int:
        """Return the index of a parameter. If no sample has it, register it by its name alone."""
        self.parameters.setdefault(name, wire.Parameter(name, (), "unknown"))
        return list(self.parameters).index(name)

    @property
    def header(self) -> wire.StreamHeader:
        return wire.StreamHeader(
            stream=self.name,
            scaler="imported",
            device="unknown",
            init_scale=self.init_scale,
            growth_factor=self.factors.get("grow", 2.0),
            backoff_factor=self.factors.get("backoff", 0.5),
            growth_interval=self.interval,
            sample=self.sample,
            parameters=tuple(self.parameters.values()),
            modules=tuple(wire.Module(name, "unknown") for name in self.modules),
        )


class Exported:
    """A run in files. Reads them twice. Holds all skips and events in memory, but only a few of the other rows."""

    def __init__(self, files: Files, name: str, project: str) -> None:
        self._files = files
        self._scalers: dict[str, _Scaler] = {}
        self._starts: dict[int, tuple[int, int]] = {}
        self._updated: Counter[tuple[str, int]] = Counter()
        self._survey()
        run_id, first = uuid4(), min(self._starts)
        self._headers = {
            attempt: header_of(
                run_id, name, project, step if step or attempt != first else None, time
            )
            for attempt, (step, time) in self._starts.items()
        }
        events = self._lowest("events")
        self._fresh = {
            row["attempt"]: not _detail(row).get("restored", True)
            for row in events
            if row["kind"] == "resume"
        }
        self._events = [row for row in reversed(events) if row["kind"] != "resume"]
        self._seqs = _Seqs(self._kept_seqs())
        self._skips: dict[tuple[str, int], list[Row]] = {}
        for row in reversed(self._lowest("skips")):
            self._skips.setdefault((row["scaler"], row["step"]), []).append(row)
            of = self._scaler(row)
            for culprit in row["culprits"]:
                of.place(culprit["parameter"])
            if row["origin_module"] is not None:
                of.modules.setdefault(row["origin_module"], len(of.modules))

    def batches(self) -> Iterator[wire.Batch]:
        """Yield the batches to send, attempt by attempt. The first ones, without records, number the attempts."""
        numbers = self._numbers()
        scalers = sorted(self._scalers.values(), key=lambda each: numbers.get(each.name, math.inf))
        streams = tuple(each.header for each in scalers)
        for _, header in sorted(self._headers.items()):
            yield batch_of(header, streams, ())
        for records in (self._updates(), self._logged(), self._happened()):
            for attempt, group in groupby(records, key=lambda each: each[0]):
                yield from batched(self._headers[attempt], streams, (record for _, record in group))

    def _survey(self) -> None:
        for row in self._of("updates"):
            known = self._scalers.get(row["scaler"])
            if known is None:
                known = self._scalers[row["scaler"]] = _Scaler(row["scaler"], _number(row, "scale"))
            known.note(row)
            self._updated[row["scaler"], row["attempt"]] += 1
            first = self._starts.get(row["attempt"], (row["step"], row["time"]))
            self._starts[row["attempt"]] = min(first, (row["step"], row["time"]))
        for row in self._samples():
            of = self._scaler(row)
            of.sampled.add(row["step"])
            shape = tuple(row["shape"])
            of.parameters.setdefault(
                row["parameter"], wire.Parameter(row["parameter"], shape, row["dtype"])
            )
            if row["looked"] < math.prod(shape):
                of.sample = max(of.sample or 0, row["looked"])

    def _scaler(self, row: Row) -> _Scaler:
        if row["scaler"] not in self._scalers:
            raise CannotImport(
                f"no update is of the scaler {row['scaler']!r}: are the files of one run?"
            )
        return self._scalers[row["scaler"]]

    def _numbers(self) -> dict[str, int]:
        """The number of each scaler's stream, as far as the rows tell. Logged values have the steps of the first."""
        rows = (row for table in ("skips", "events", "scalars") for row in self._of(table))
        found: dict[str, int] = {}
        for row in rows:
            number = int(row["stream"])
            found[row["scaler"]] = min(number, found.get(row["scaler"], number))
        return found

    def _kept_seqs(self) -> set[tuple[str, int, int]]:
        """The numbers that events keep. In a stream with fewer rows, they would leave gaps, which count as losses."""
        rows = self._updated.copy()
        rows.update((row["scaler"], row["attempt"]) for row in self._events)
        rows.update((row["scaler"], self._attempt_of(row)) for row in self._scalars())
        seqs: dict[tuple[str, int], set[int]] = {}
        for row in self._events:
            seqs.setdefault((row["scaler"], row["attempt"]), set()).add(row["seq"])
        return {(*of, seq) for of, kept in seqs.items() if max(kept) < rows[of] for seq in kept}

    def _attempt_of(self, row: Row) -> int:
        """The attempt of a logged value, whose row does not name it: that of the scaler's update at its step."""
        scaler = self._scalers.get(row["scaler"], next(iter(self._scalers.values())))
        place = bisect_right(scaler.attempts, row["step"], key=itemgetter(0))
        return scaler.attempts[max(place - 1, 0)][1]

    def _of(self, table: Table) -> Iterator[Row]:
        return _rows(self._files[table]) if table in self._files else iter(())

    def _samples(self) -> Iterator[Row]:
        """The samples of the first rank seen of each scaler."""
        ranks: dict[str, int] = {}
        for row in self._of("samples"):
            if ranks.setdefault(row["scaler"], row["rank"]) == row["rank"]:
                yield row

    def _scalars(self) -> Iterator[Row]:
        """The logged values of the lowest rank that has each name."""
        lowest: dict[str, int] = {}
        for row in self._of("scalars"):
            lowest[row["name"]] = min(row["rank"], lowest.get(row["name"], row["rank"]))
        return (row for row in self._of("scalars") if row["rank"] == lowest[row["name"]])

    def _lowest(self, table: Table) -> list[Row]:
        rows = list(self._of(table))
        lowest = min((row["rank"] for row in rows), default=0)
        return [row for row in rows if row["rank"] == lowest]

    def _updates(self) -> Iterator[tuple[int, wire.Record]]:
        for name, rows in groupby(self._of("updates"), key=itemgetter("scaler")):
            of = self._scalers[name]
            samples = _SampleRows((row for row in self._samples() if row["scaler"] == name), of)
            for row in rows:
                sample = samples.take(row["step"])
                yield row["attempt"], self._update(row, self._gradients(of, sample))

    def _update(self, row: Row, gradients: wire.Gradients | None) -> wire.Update:
        scaler, attempt = row["scaler"], row["attempt"]
        ordinal = row["step"] - self._starts[attempt][0]
        return wire.Update(
            stream=scaler,
            seq=self._seqs.next(scaler, attempt),
            ordinal=ordinal,
            time=row["time"],
            scale=_number(row, "scale"),
            scale_after=_number(row, "scale_after"),
            growth_tracker=row["growth_tracker"],
            event=row["event"],
            optimizers=tuple(self._optimizers(row)),
            duration=row["duration_us"],
            cost=row["cost_us"],
            fresh=ordinal == 0 and self._fresh.get(attempt, attempt == min(self._starts)),
            memory_peak=row["memory_peak"],
            gradients=gradients,
            **self._began(row),
        )

    def _began(self, row: Row) -> dict[str, Any]:
        """The fields of a skipped update that say whether its loss was finite, and where it overflowed."""
        skip: Row = next(iter(self._skips.get((row["scaler"], row["step"]), ())), {})
        found = {"loss": skip.get("loss")}
        if skip.get("origin") not in (None, "backward"):
            place = self._scaler(row).modules.get(skip["origin_module"])
            found |= {"origin": skip["origin"], "origin_module": place}
        return found

    def _optimizers(self, row: Row) -> Iterator[wire.OptimizerStep]:
        paths: list[Any] = [each for each in row["path"].split("+") if each]
        known = self._skips.get((row["scaler"], row["step"]), ())
        of = self._scaler(row)
        for skip in known:
            yield wire.OptimizerStep(
                optimizer=skip["optimizer"],
                path=skip["path"],
                skipped=True,
                culprits=tuple(
                    wire.Culprit(of.place(each["parameter"]), each["inf"], each["nan"])
                    for each in skip["culprits"]
                ),
                culprit_order=skip["culprit_order"],
                culprit_parameters=skip["culprit_parameters"],
            )
        left = [path for path in paths if path not in {skip["path"] for skip in known}]
        for number, path in enumerate(left or ([] if known else ["plain"])):
            skipped = row["skipped"] and not known
            yield wire.OptimizerStep(optimizer=f"optimizer {number}", path=path, skipped=skipped)

    @staticmethod
    def _gradients(of: _Scaler, rows: Sequence[Row]) -> wire.Gradients | None:
        if not rows:
            return None
        places = {name: place for place, name in enumerate(of.parameters)}
        counts = ("looked", "zeros", "on_grid", "inf", "nan", "histogram", "run_squares")
        return Statistics(
            parameters=np.array([places[row["parameter"]] for row in rows], np.int32),
            **{name: np.array([row[name] for row in rows], np.int64) for name in counts},
            amax=np.array([_number(row, "amax") for row in rows]),
            sum_squares=np.array([_number(row, "sum_squares") for row in rows]),
        ).to_wire()

    def _logged(self) -> Iterator[tuple[int, wire.Record]]:
        for row in self._scalars():
            attempt = self._attempt_of(row)
            record = scalar(
                row["scaler"],
                self._seqs.next(row["scaler"], attempt),
                row["step"] - self._starts[attempt][0],
                row["time"],
                row["name"],
                _number(row, "value"),
                row["user_step"],
            )
            yield attempt, record

    def _happened(self) -> Iterator[tuple[int, wire.Record]]:
        for row in self._events:
            step, attempt = row["step"], row["attempt"]
            if attempt not in self._starts:
                continue  # a later attempt redid all updates of this one
            yield (
                attempt,
                wire.Event(
                    stream=row["scaler"],
                    seq=self._seqs.of_event(row["scaler"], attempt, row["seq"]),
                    time=row["time"],
                    kind=row["kind"],
                    ordinal=None if step is None else step - self._starts[attempt][0],
                    detail=_detail(row),
                ),
            )
        if "events" not in self._files:
            last = max(self._starts)
            yield last, wire.Event(stream="", seq=0, time=self._starts[last][1], kind="finish")


class _SampleRows:
    """A scaler's rows of samples. Where a resume redid steps, they are not in order of step."""

    def __init__(self, rows: Iterator[Row], of: _Scaler) -> None:
        self._groups = groupby(rows, key=itemgetter("step"))
        self._steps = of.sampled
        self._passed: dict[int, list[Row]] = {}

    def take(self, step: int) -> list[Row]:
        """Return the rows of a step. Reads on until there, and holds what it passes."""
        while step in self._steps and step not in self._passed:
            passed, rows = next(self._groups)
            self._passed[passed] = list(rows)
        return self._passed.pop(step, [])


class _Seqs:
    """Assigns record numbers in each stream and attempt, and skips those that events keep."""

    def __init__(self, taken: set[tuple[str, int, int]]) -> None:
        self._taken = taken
        self._counts: dict[tuple[str, int], Iterator[int]] = {}

    def of_event(self, scaler: str, attempt: int, seq: int) -> int:
        """Return the number of an event that had the number ``seq``."""
        return seq if (scaler, attempt, seq) in self._taken else self.next(scaler, attempt)

    def next(self, scaler: str, attempt: int) -> int:
        numbers = self._counts.setdefault((scaler, attempt), count())
        return next(each for each in numbers if (scaler, attempt, each) not in self._taken)


def _number(row: Row, name: str) -> float:
    value = row[name]
    return float(row[f"{name}_kind"] or "nan") if value is None else float(value)


def _detail(row: Row) -> dict[str, Any]:
    detail = row["detail"]
    found: dict[str, Any] = orjson.loads(detail) if isinstance(detail, str) else detail
    return found
