"""Several runs side by side: their charts, the differences in their configurations, and their results.

The distance of a run from a baseline is where its logged values leave the baseline's band, and the loss scale there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Literal, TypeVar
from uuid import UUID

from ampmon.wire import BASELINE
from ampmon_server.analysis.diagnosis.effective import effective
from ampmon_server.charts import Figure, View
from ampmon_server.charts.compared import COMPARED
from ampmon_server.charts.together import Compared
from ampmon_server.model.aggregates.departure import Departure, band, departure
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.aggregates.scalars import empty as no_values
from ampmon_server.model.words import (
    NONE,
    count,
    digits_of,
    measure,
    not_finite,
    percent,
    plural,
    power_of_two,
    scale_words,
    within,
)
from ampmon_server.queries.sources import ChartRequest, add_logged, series_of
from ampmon_server.store import NotFound, Store, Summary
from ampmon_server.store.engine.errors import Unreadable
from ampmon_server.store.engine.numbers import KINDS, join, split_named
from ampmon_server.store.pages.windows import WHOLE, Stretch
from ampmon_server.store.runs.runs import Identity
from ampmon_server.store.updates.logged import Name, lowest


T = TypeVar("T")
SCALARS_MAX = 4
"""The newest and the least value are shown for at most this many logged names."""
COLUMNS = 1000
"""The number of cells read of a run. It is enough even if the baseline has values for only a part of the run."""


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """A row of a table: its name, the value of each run, and whether the values of the existing runs differ.

    A value is null if the run does not exist.
    """

    name: str
    values: list[str | None]
    differs: bool


@dataclass(frozen=True, slots=True)
class Distance:
    """Where a run's logged value leaves the baseline's band, in ``words`` and in numbers.

    ``step`` and ``side`` are null if it stays within the band. ``until`` is the last step compared, null if nothing
    could be compared. ``scale`` is the loss scale at ``step``, null if unknown. ``skipped`` counts the updates skipped
    up to ``step``.
    """

    words: str
    step: int | None = None
    side: Literal["above", "below"] | None = None
    until: int | None = None
    scale: float | None = None
    scale_kind: str | None = None
    skipped: int | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The compared ``runs`` in the requested order, null where one does not exist (any more), and what differs.

    ``baseline`` is the id of the baseline, null without one; then ``distances`` are null too. ``name`` is the logged
    value that they compare. ``own_steps`` says whether any run has steps of the user's own.
    """

    runs: list[Summary | None]
    baseline: str | None
    name: str | None
    distances: list[Distance | None]
    outcome: list[ComparedRow]
    made: list[ComparedRow]
    own_steps: bool


@dataclass(frozen=True, slots=True)
class Reference:
    """How to compare runs: with a chosen ``baseline``, by the ``name`` of a logged value. None means the default."""

    baseline: UUID | None = None
    name: str | None = None


def logged_of(names: Sequence[Name]) -> Mapping[str, Name]:
    """Return the logged ``names`` of a run by name, those with "loss" in them first.

    The values are those of the lowest rank that has the name, which the charts draw.
    """
    found = lowest(names)
    return dict(sorted(found.items(), key=lambda item: ("loss" not in item[0], item[0])))


@dataclass(frozen=True)
class _Held:
    """A run that exists. What it logged is read once, when it is needed."""

    store: Store
    run_id: UUID
    run: Summary
    identity: Identity

    @cached_property
    def names(self) -> Sequence[Name]:
        return self.store.scalar_names(self.run_id)

    @cached_property
    def logged(self) -> Mapping[str, Name]:
        return logged_of(self.names)


@dataclass(frozen=True, slots=True)
class RunLoss:
    """The newest and the least value of a run's loss, and the ``name`` under which it was logged.

    ``kind`` is ``nan``, ``inf`` or ``-inf`` if the newest value is not finite; then ``value`` is null. ``least`` is the
    least finite value, null if there is none.
    """

    name: str
    value: float | None
    kind: str | None
    least: float | None
    words: str


def loss_of(store: Store, run_id: UUID) -> RunLoss | None:
    """Return the loss under the first name with "loss" in it. None without one, and for a run that cannot be read."""
    try:
        first = next(iter(logged_of(store.scalar_names(run_id)).values()), None)
    except (NotFound, Unreadable):  # a damaged run must not hide the losses of others
        return None
    if first is None or "loss" not in first.name:
        return None
    value = join(first.value, KINDS.index(first.value_kind))
    words = NONE if value is None else measure(value)
    if first.least is not None:
        words += f" (min\u00a0{measure(first.least)})"
    return RunLoss(first.name, first.value, first.value_kind, first.least, words)


def despite_deletion(
    store: Store, run_ids: Sequence[UUID | None], read: Callable[[Sequence[UUID | None]], T]
) -> T:
    """Return what ``read`` gives for the runs. If a run is deleted meanwhile, read again without it.

    Raises NotFound if ``read`` does so for runs that exist.
    """
    try:
        return read(run_ids)
    except NotFound:
        left = [each if _held(store, each) else None for each in run_ids]
        if left == list(run_ids):
            raise
        return despite_deletion(store, left, read)


def draw(
    store: Store,
    run_ids: Sequence[UUID | None],
    name: str,
    view: View,
    reference: Reference = Reference(),
) -> Figure:
    """Draw the chart ``name`` of those runs that exist. A run id of None stands for a run that does not.

    Raises NotFound if there is no such chart, or if none of the runs exists.
    """
    figure = COMPARED.get(name)
    if figure is None:
        raise NotFound(
            f"There is no figure {name!r} of several runs; there are {', '.join(COMPARED)}."
        )
    held = {place: found for place, each in enumerate(run_ids) if (found := _held(store, each))}
    if not held:
        raise NotFound("None of these runs was found.")
    names = [each.run.name for each in held.values()]
    by = _chosen(held.values(), reference) if name == "logged" else None
    runs = []
    for place, each in held.items():
        source = series_of(store, each.run_id, ChartRequest(_since_start(each.run, view)))
        drawn = Compared(each.run.name, place, source, each.run.started, names)
        runs.append(drawn if by is None else _with_logged(each, drawn, by, view))
    # Time since a start has no time zone.
    return figure(runs, replace(view, zone=None))


def compare(
    store: Store,
    run_ids: Sequence[UUID | None],
    reference: Reference = Reference(),
) -> Comparison:
    """Compare runs side by side. A run id of None stands for a run that does not exist."""
    found = [_held(store, run_id) for run_id in run_ids]
    came = [None if each is None else dict(_came(each)) for each in found]
    made = [None if each is None else dict(_made(each.identity)) for each in found]
    there = [each for each in found if each is not None]
    own = any(name.user_steps for each in there for name in each.names)
    baseline, name = _chosen(there, reference)
    distances = [
        _distance(baseline, each, name) if each and baseline and name else None for each in found
    ]
    runs = [None if each is None else each.run for each in found]
    of = None if baseline is None else baseline.run.run_id
    return Comparison(runs, of, name, distances, _lines(came), _lines(made), own)


def _chosen(runs: Collection[_Held], reference: Reference) -> tuple[_Held | None, str | None]:
    """Return the baseline and the name to compare.

    The default name is the first that the baseline logged, a loss if it has one, else the first of any run.
    """
    asked = [each for each in runs if each.run_id == reference.baseline]
    tagged = [each for each in runs if BASELINE in each.run.tags]
    baseline = next(iter([*asked, *tagged]), None)
    if reference.name is not None:
        return baseline, reference.name
    ordered = [baseline, *runs] if baseline else runs
    return baseline, next((name for each in ordered for name in each.logged), None)


def _with_logged(
    held: _Held, drawn: Compared, by: tuple[_Held | None, str | None], view: View
) -> Compared:
    """Add what a run logged, and the band if it is the baseline, or else where it leaves the band."""
    baseline, name = by
    if name is None or name not in held.logged:
        # Even if no run has values of the name, the chart has to know which one was asked for.
        none = {} if name is None else {name: no_values()}
        return replace(drawn, source=replace(drawn.source, logged=list(held.logged), scalars=none))
    during = _since_start(held.run, view)
    source = add_logged(held.store, held.run_id, drawn.source, [name], held.logged, during)
    drawn = replace(drawn, source=source)
    if baseline is None:
        return drawn
    if held is baseline:
        return replace(drawn, band=band(_cells(held, name, WHOLE)))
    left = _departure(baseline, held, name)
    return replace(drawn, left=left if isinstance(left, Departure) else None)


def _since_start(run: Summary, view: View) -> View:
    """Convert times since the start of a run to its times."""
    if view.x != "time":
        return view
    start, stop = (None if end is None else end + run.started for end in (view.start, view.stop))
    return replace(view, start=start, stop=stop)


def _held(store: Store, run_id: UUID | None) -> _Held | None:
    try:
        return None if run_id is None else _Held(store, run_id, *store.run(run_id))
    except NotFound:
        return None


def _lines(columns: Sequence[Mapping[str, str] | None]) -> list[ComparedRow]:
    """Return a row for each name that any run has, in the order in which the names first appear."""
    names = dict.fromkeys(name for each in columns if each is not None for name in each)
    lines = []
    for name in names:
        values = [None if each is None else each.get(name, NONE) for each in columns]
        known = {value for value in values if value is not None}
        lines.append(ComparedRow(name, values, len(known) > 1))
    return lines


def _came(held: _Held) -> Iterator[tuple[str, str]]:
    run = held.run
    verdict = run.verdict if run.updates or run.severity else None
    yield "verdict", NONE if verdict is None else verdict.replace("`", "")
    yield "status", run.status
    yield "steps", count(run.updates)
    yield "skipped", count(run.skipped)
    yield "skip rate", NONE if run.skip_rate is None else percent(run.skip_rate)
    yield "final scale", scale_words(run.scale, run.scale_kind)
    shares = (
        ("subnormal", run.subnormal_fraction, run.subnormal_fraction_error),
        ("zero", run.zero_fraction, run.zero_fraction_error),
    )
    for name, share, error in shares:
        yield f"{name} now", within(share, error)
    yield "training", effective(held.store.case(held.run_id)).sentence
    for name, scalar in islice(held.logged.items(), SCALARS_MAX):
        yield f"{name} (last)", _value(join(scalar.value, KINDS.index(scalar.value_kind)))
        yield f"{name} (min)", _value(scalar.least)


def _value(value: float | None) -> str:
    if value is None:
        return NONE
    return digits_of(value, 6) if math.isfinite(value) else not_finite(value)


def _made(identity: Identity) -> Iterator[tuple[str, str]]:
    """Yield what is known of a run's configuration: of its lowest rank's newest start, and of its first scaler."""
    yield from _flat("config", identity.config)
    if identity.scalers:
        first = identity.scalers[0]["stream"]
        newest = [each for each in identity.scalers if each["stream"] == first][-1]
        for name, value in newest.items():
            if name not in {"stream", "attempt"}:
                yield from _flat(f"scaler.{name}", value)
    if identity.attempts:
        lowest = identity.attempts[0]["rank"]
        start = [each for each in identity.attempts if each["rank"] == lowest][-1]
        yield from _flat("versions", start["versions"])
        for name in ("world_size", "git_commit", "host"):
            yield name, str(start[name])
    yield "starts", count(len(identity.attempts))


def _flat(name: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner)
    elif value != {}:
        yield name, str(value)  # as Python writes it


def _departure(baseline: _Held, held: _Held, name: str) -> Departure | int | None:
    """Return the `departure` of a run over the steps that both runs have; None if they cannot be compared."""
    both = baseline, held
    if not all(name in each.logged for each in both):
        return None
    during = Stretch(0, min(each.logged[name].step for each in both) + 1)
    return departure(*(_cells(each, name, during) for each in both))


def _cells(held: _Held, name: str, during: Stretch) -> Cells:
    return held.store.scalar_series(held.run_id, name, during, columns=COLUMNS)


def _distance(baseline: _Held, held: _Held, name: str) -> Distance:
    """Return how far a run is from its baseline in the values logged under ``name``."""
    if held is baseline:
        return Distance("baseline")
    found = _departure(baseline, held, name)
    if found is None:
        return Distance(f"too few values of {name} to compare")
    if isinstance(found, int):
        return Distance(f"{name} stays within the band, to step {count(found)}", until=found)
    holder = held.logged[name]
    # The step is one of the scaler after whose updates the value was logged.
    stream = int(holder.stream) if holder.scaler else None
    at = held.store.series(
        held.run_id, stream=stream, stop=found.step + 1, columns=100, sampled=False
    )
    words = f"{name} {found.side} the band from step {count(found.step)}"
    if len({each["scaler"] for each in held.run.streams}) > 1:
        words += f" of {at.scaler.name}"
    if not len(at.updates):
        return Distance(words, found.step, found.side, found.until)
    skipped, scale = int(at.updates["skipped"].sum()), float(at.updates["scale_last"][-1])
    words += f": scale {power_of_two(scale)}, {plural(skipped, 'skipped step')} before"
    return Distance(words, found.step, found.side, found.until, *split_named(scale), skipped)
