"""Several runs, read and set side by side: their charts, what differs in how they were made, and what came of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from uuid import UUID

import orjson

from ampmon.wire import COUNT_MAX
from ampmon_server.diagnosis import effective
from ampmon_server.drawing import source_of
from ampmon_server.figures.compared import COMPARED, Compared
from ampmon_server.figures.layout import Figure
from ampmon_server.figures.source import Source, View
from ampmon_server.store import NotFound, Store, Summary
from ampmon_server.store.identity import Identity
from ampmon_server.store.logged import Name
from ampmon_server.store.numbers import KINDS, join
from ampmon_server.words import NONE, count, not_finite, percent, power_of_two, within


Axis = Literal["step", "time", "user"]
SCALARS_MAX = 4
"""Of so many logged names the newest and the least value are told."""


@dataclass(frozen=True, slots=True)
class Line:
    """A row of a table: what it is called, what each run has there, and whether those that are there differ."""

    name: str
    values: list[str | None]
    differs: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """``runs`` in the order asked for, null where one is not there (any more), with what is told of each in words.

    ``own_steps``: whether any was given steps of the user's own.
    """

    runs: list[Summary | None]
    outcome: list[Line]
    made: list[Line]
    own_steps: bool


def draw(store: Store, run_ids: Sequence[UUID | None], name: str, view: View) -> Figure:
    """A chart of those of the runs that are there; None is not. Raises NotFound, where it or all of them are not."""
    figure = COMPARED.get(name)
    if figure is None:
        raise NotFound(
            f"There is no figure {name!r} of several runs; there are {', '.join(COMPARED)}."
        )
    found = [
        Compared(held[0].name, place, _source(store, held[0], view), held[0].started)
        for place, run_id in enumerate(run_ids)
        if (held := _held(store, run_id))
    ]
    if not found:
        raise NotFound("None of these runs is there.")
    # The time since a start is of no zone.
    return figure(found, replace(view, zone=0))


def compare(store: Store, run_ids: Sequence[UUID | None]) -> Comparison:
    """What is told of the runs side by side; None is of a run that is not there."""
    found = [_held(store, run_id) for run_id in run_ids]
    came = [None if each is None else dict(_came(store, each[0])) for each in found]
    made = [None if each is None else dict(_made(each[1])) for each in found]
    runs = [None if each is None else each[0] for each in found]
    own = any(_has_own_steps(store, run) for run in runs if run is not None)
    return Comparison(runs, _lines(came), _lines(made), own)


def _has_own_steps(store: Store, run: Summary) -> bool:
    return any(each.user_steps for each in store.scalar_names(UUID(run.run_id)))


def _held(store: Store, run_id: UUID | None) -> tuple[Summary, Identity] | None:
    try:
        return None if run_id is None else store.run(run_id)
    except NotFound:
        return None


def _source(store: Store, run: Summary, view: View) -> Source:
    began = run.started if view.x == "time" else 0
    series = store.series(
        UUID(run.run_id),
        start=0 if view.start is None else view.start + began,
        stop=COUNT_MAX + 1 if view.stop is None else view.stop + began,
        by=view.x,
        columns=view.columns,
    )
    return source_of(series)


def _lines(told: Sequence[Mapping[str, str] | None]) -> list[Line]:
    """A line for each name that any run has, in the order in which they are first met."""
    names = dict.fromkeys(name for each in told if each is not None for name in each)
    lines = []
    for name in names:
        values = [None if each is None else each.get(name, NONE) for each in told]
        known = {value for value in values if value is not None}
        lines.append(Line(name, values, len(known) > 1))
    return lines


def _came(store: Store, run: Summary) -> Iterator[tuple[str, str]]:
    verdict = run.verdict if run.updates or run.severity else None
    yield "verdict", NONE if verdict is None else verdict.replace("`", "")
    yield "status", run.status
    yield "updates", count(run.updates)
    yield "skipped", count(run.skipped)
    yield "skip rate", NONE if run.skip_rate is None else percent(run.skip_rate)
    scale = join(run.scale, KINDS.index(run.scale_kind))
    yield "final scale", NONE if scale is None else power_of_two(scale)
    shares = (
        ("subnormal", run.subnormal_fraction, run.subnormal_fraction_error),
        (
            "zero",
            run.zero_fraction,
            run.zero_fraction_error,
        ),
    )
    for name, share, error in shares:
        yield f"{name} now", NONE if share is None else within(share, error)
    yield "training", effective(store.case(UUID(run.run_id))).sentence
    logged: dict[str, Name] = {}
    for each in store.scalar_names(UUID(run.run_id)):
        logged.setdefault(each.name, each)  # of the lowest rank, which the charts draw
    for name in sorted(logged, key=lambda each: ("loss" not in each, each))[:SCALARS_MAX]:
        told = logged[name]
        yield f"{name} (last)", _value(join(told.value, KINDS.index(told.value_kind)))
        yield f"{name} (min)", _value(told.least)


def _value(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:.6g}" if math.isfinite(value) else not_finite(value)


def _made(identity: Identity) -> Iterator[tuple[str, str]]:
    """What is known of how a run was made: of its lowest rank's newest start, and of its first scaler."""
    yield from _flat("config", identity.config)
    if identity.scalers:
        first = identity.scalers[0]["stream"]
        newest = [each for each in identity.scalers if each["stream"] == first][-1]
        for name, value in newest.items():
            if name not in {"stream", "attempt"}:
                yield f"scaler.{name}", _said(value)
    if identity.attempts:
        lowest = identity.attempts[0]["rank"]
        start = [each for each in identity.attempts if each["rank"] == lowest][-1]
        yield from _flat("versions", start["versions"])
        for name in ("world_size", "git_commit", "host"):
            yield name, _said(start[name])
    yield "starts", count(len(identity.attempts))


def _flat(name: str, value: object) -> Iterator[tuple[str, str]]:
    """What is nested as names with dots."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner)
    elif value != {}:
        yield name, _said(value)


def _said(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
