"""Reads files of `ampmon export` (Parquet, Arrow or JSON lines) back into the records they were made from.

Every row of the lowest rank comes back unchanged, with two exceptions. Events have other numbers, and so have attempts
if rows are missing. The module in which an overflow began backward is lost with the activations, which an export does
not hold, nor the configuration of the run. All rows are read and checked before the first batch.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import numpy as np

from ampmon import wire
from ampmon.numerics.histogram import Statistics
from ampmon_server.exchange.formats import Table
from ampmon_server.exchange.logs import CannotImport
from ampmon_server.exchange.rows import (
    ExportedGradient,
    ExportedScalar,
    ExportedSkip,
    ExportedUpdate,
    rows_of,
    table_of,
)
from ampmon_server.exchange.sending import batch_of, batched, header_of, scalar
from ampmon_server.model.scale_policy import INIT_SCALE


Files: TypeAlias = Mapping[Table, Path]


def tables_of(paths: Sequence[Path]) -> Files:
    """Return the file of each table. Raises CannotImport, also if no file holds the updates."""
    found: dict[Table, Path] = {}
    for path in paths:
        table = table_of(path)
        if table in found:
            raise CannotImport(
                f"{path}: {found[table]} has {table} too: pass one file of each table"
            )
        if table is not None:
            found[table] = path
    if "updates" not in found:
        raise CannotImport(
            "no file has exported updates: pass them too, because the other rows refer to them"
        )
    return found


@dataclass
class _Scaler:
    """What the rows show about a scaler: its policy, and its parameters in order of appearance."""

    name: str
    init_scale: float = INIT_SCALE
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

    def note(self, row: ExportedUpdate, path: Path) -> None:
        if row.step <= self.step:
            raise CannotImport(
                f"{path}: step {row.step} of scaler {self.name!r} is there twice or out of order"
            )
        if not self.attempts or self.attempts[-1][1] != row.attempt:
            self.attempts.append((row.step, row.attempt))
        event = row.event
        if event in {"grow", "backoff"} and row.scale and row.scale_after:
            self.factors[event] = row.scale_after / row.scale
        # An export holds no settings, but the tracker before a growth shows the interval.
        if event == "grow" and row.step == self.step + 1:
            self.interval = self.tracker + 1
        self.step, self.tracker = row.step, row.growth_tracker

    def place(self, name: str) -> int:
        """Return the index of a parameter. If no sample has it, register it by its name alone."""
        self.parameters.setdefault(name, wire.Parameter(name, (), "unknown"))
        return list(self.parameters).index(name)

    def statistics(self, rows: Sequence[ExportedGradient]) -> Statistics:
        """Return one sample's statistics. Raises ValueError for impossible counts."""
        places = {name: place for place, name in enumerate(self.parameters)}
        counts = ("looked", "zeros", "on_grid", "inf", "nan", "histogram", "run_squares")
        statistics = Statistics(
            parameters=np.array([places[row.parameter] for row in rows], np.int32),
            **{name: np.array([getattr(row, name) for row in rows], np.int64) for name in counts},
            amax=np.array([_number(row, "amax") for row in rows]),
            sum_squares=np.array([_number(row, "sum_squares") for row in rows]),
        )
        statistics.check()
        return statistics

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
        self._origins: dict[int, int] = {}
        self._began: dict[int, int] = {}
        """The first step of each attempt, if known, and its first time."""
        self._survey_updates()
        self._survey_samples()
        events = self._lowest("events")
        for row in events:
            self._note(row.attempt, row.step, row.time)
        self._fresh = {
            row.attempt: not row.detail.get("restored", True)
            for row in events
            if row.kind == "resume"
        }
        self._events = [row for row in reversed(events) if row.kind != "resume"]
        self._skips: dict[tuple[str, int], list[ExportedSkip]] = {}
        self._survey_skips()
        for row in self._scalars():
            self._note(self._attempt_of(row), row.step, row.time)
        self._seqs: defaultdict[tuple[str, int], Iterator[int]] = defaultdict(count)
        """The next record numbers of each stream and attempt."""
        run_id, first = uuid4(), min(self._began)
        # A first attempt that begins at step 0 resumed nothing.
        origins = self._origins | {first: self._origins.get(first) or None}
        self._headers = {
            attempt: header_of(run_id, name, project, origins.get(attempt), time)
            for attempt, time in self._began.items()
        }

    def batches(self) -> Iterator[wire.Batch]:
        """Yield the batches to send, attempt by attempt. The first ones, without records, number the attempts."""
        numbers = self._numbers()
        names = dict.fromkeys((*self._scalers, *numbers))  # some have events only
        ordered = sorted(filter(None, names), key=lambda name: numbers.get(name, math.inf))
        streams = tuple((self._scalers.get(name) or _Scaler(name)).header for name in ordered)
        for _, header in sorted(self._headers.items()):
            yield batch_of(header, streams, ())
        for records in (self._updates(), self._logged(), self._happened()):
            for attempt, group in groupby(records, key=lambda each: each[0]):
                yield from batched(self._headers[attempt], streams, (record for _, record in group))

    def _survey_updates(self) -> None:
        for row in self._of("updates"):
            known = self._scalers.get(row.scaler)
            if known is None:
                known = self._scalers[row.scaler] = _Scaler(row.scaler, _number(row, "scale"))
            known.note(row, self._files["updates"])
            self._note(row.attempt, row.step, row.time)

    def _note(self, attempt: int, step: int | None, time: int) -> None:
        self._began[attempt] = min(time, self._began.get(attempt, time))
        if step is not None:
            self._origins[attempt] = min(step, self._origins.get(attempt, step))

    def _survey_samples(self) -> None:
        for (name, step), group in groupby(self._samples(), key=attrgetter("scaler", "step")):
            of, rows = self._scaler(name, "samples"), list(group)
            of.sampled.add(step)
            for row in rows:
                of.parameters.setdefault(row.parameter, row.about)
                if row.looked < math.prod(row.shape):
                    of.sample = max(of.sample or 0, row.looked)
            try:
                of.statistics(rows)
            except ValueError as error:
                raise CannotImport(f"{self._files['samples']}: step {step}: {error}") from None

    def _survey_skips(self) -> None:
        for row in reversed(self._lowest("skips")):
            self._skips.setdefault((row.scaler, row.step), []).append(row)
            of = self._scaler(row.scaler, "skips")
            for culprit in row.culprits:
                of.place(culprit.parameter)
            if row.origin_module is not None:
                of.modules.setdefault(row.origin_module, len(of.modules))

    def _scaler(self, name: str, table: Table) -> _Scaler:
        if name not in self._scalers:
            raise CannotImport(
                f"{self._files[table]}: no update is of the scaler {name!r}: are the files of one run?"
            )
        return self._scalers[name]

    def _numbers(self) -> dict[str, int]:
        """The number of each scaler's stream, as far as the rows tell. Logged values have the steps of the first."""
        rows = (row for table in ("skips", "events", "scalars") for row in self._of(table))
        found: dict[str, int] = {}
        for row in rows:
            number = int(row.stream)
            found[row.scaler] = min(number, found.get(row.scaler, number))
        return found

    def _attempt_of(self, row: ExportedScalar) -> int:
        """The attempt of a logged value, whose row does not name it: that of the scaler's update at its step."""
        scaler = self._scalers.get(row.scaler, next(iter(self._scalers.values())))
        place = bisect_right(scaler.attempts, row.step, key=itemgetter(0))
        return scaler.attempts[max(place - 1, 0)][1]

    def _of(self, table: Table) -> Iterator[Any]:
        return rows_of(self._files[table], table) if table in self._files else iter(())

    def _samples(self) -> Iterator[ExportedGradient]:
        """The samples of the first rank seen of each scaler."""
        ranks: dict[str, int] = {}
        for row in self._of("samples"):
            if ranks.setdefault(row.scaler, row.rank) == row.rank:
                yield row

    def _scalars(self) -> Iterator[ExportedScalar]:
        """The logged values of the lowest rank that has each name."""
        lowest: dict[str, int] = {}
        for row in self._of("scalars"):
            lowest[row.name] = min(row.rank, lowest.get(row.name, row.rank))
        return (row for row in self._of("scalars") if row.rank == lowest[row.name])

    def _lowest(self, table: Table) -> list[Any]:
        rows = list(self._of(table))
        lowest = min((row.rank for row in rows), default=0)
        return [row for row in rows if row.rank == lowest]

    def _updates(self) -> Iterator[tuple[int, wire.Record]]:
        for name, rows in groupby(self._of("updates"), key=attrgetter("scaler")):
            of = self._scalers[name]
            samples = _SampleRows((row for row in self._samples() if row.scaler == name), of)
            for row in rows:
                sample = samples.take(row.step)
                gradients = of.statistics(sample).to_wire() if sample else None
                yield row.attempt, self._update(row, of, gradients)

    def _update(
        self, row: ExportedUpdate, of: _Scaler, gradients: wire.Gradients | None
    ) -> wire.Update:
        attempt, skips = row.attempt, self._skips.get((of.name, row.step), [])
        ordinal = row.step - self._origins[attempt]
        return wire.Update(
            stream=of.name,
            seq=next(self._seqs[of.name, attempt]),
            ordinal=ordinal,
            time=row.time,
            scale=_number(row, "scale"),
            scale_after=_number(row, "scale_after"),
            growth_tracker=row.growth_tracker,
            event=row.event,
            optimizers=tuple(_optimizers(row, skips, of)),
            duration=row.duration_us,
            cost=row.cost_us,
            fresh=ordinal == 0 and self._fresh.get(attempt, attempt == min(self._began)),
            memory_peak=row.memory_peak,
            gradients=gradients,
            **_beginning(skips, of),
        )

    def _logged(self) -> Iterator[tuple[int, wire.Record]]:
        for row in self._scalars():
            attempt = self._attempt_of(row)
            record = scalar(
                row.scaler,
                next(self._seqs[row.scaler, attempt]),
                row.step - self._origins[attempt],
                row.time,
                row.name,
                _number(row, "value"),
                row.user_step,
            )
            yield attempt, record

    def _happened(self) -> Iterator[tuple[int, wire.Record]]:
        for row in self._events:
            step, attempt = row.step, row.attempt
            yield (
                attempt,
                wire.Event(
                    stream=row.scaler,
                    seq=next(self._seqs[row.scaler, attempt]),
                    time=row.time,
                    kind=row.kind,
                    ordinal=None if step is None else step - self._origins[attempt],
                    detail=row.detail,
                ),
            )
        if "events" not in self._files:
            last = max(self._began)
            yield last, wire.Event(stream="", seq=0, time=self._began[last], kind="finish")


def _beginning(skips: Sequence[ExportedSkip], of: _Scaler) -> dict[str, Any]:
    """The fields of a skipped update that say whether its loss was finite, and where it overflowed."""
    if not skips:
        return {}
    first = skips[0]
    found: dict[str, Any] = {"loss": first.loss}
    if first.origin not in (None, "backward"):
        place = None if first.origin_module is None else of.modules[first.origin_module]
        found |= {"origin": first.origin, "origin_module": place}
    return found


def _optimizers(
    row: ExportedUpdate, skips: Sequence[ExportedSkip], of: _Scaler
) -> Iterator[wire.OptimizerStep]:
    for skip in skips:
        yield wire.OptimizerStep(
            optimizer=skip.optimizer,
            path=skip.path,
            skipped=True,
            culprits=tuple(
                wire.Culprit(of.place(each.parameter), each.inf, each.nan) for each in skip.culprits
            ),
            culprit_order=skip.culprit_order,
            culprit_parameters=skip.culprit_parameters,
        )
    paths: list[Any] = [each for each in row.path.split("+") if each]
    left = [path for path in paths if path not in {skip.path for skip in skips}]
    for number, path in enumerate(left or ([] if skips else ["plain"])):
        skipped = row.skipped and not skips
        yield wire.OptimizerStep(optimizer=f"optimizer {number}", path=path, skipped=skipped)


class _SampleRows:
    """A scaler's rows of samples. Where a resume redid steps, they are not in order of step."""

    def __init__(self, rows: Iterator[ExportedGradient], of: _Scaler) -> None:
        self._groups = groupby(rows, key=attrgetter("step"))
        self._steps = of.sampled
        self._passed: dict[int, list[ExportedGradient]] = {}

    def take(self, step: int) -> list[ExportedGradient]:
        """Return the rows of a step. Reads on until there, and holds what it passes."""
        while step in self._steps and step not in self._passed:
            passed, rows = next(self._groups)
            self._passed[passed] = list(rows)
        return self._passed.pop(step, [])


def _number(row: ExportedUpdate | ExportedGradient | ExportedScalar, name: str) -> float:
    value = getattr(row, name)
    return float(getattr(row, f"{name}_kind") or "nan") if value is None else value
