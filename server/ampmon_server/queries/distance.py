"""How far runs are from one that is their baseline: where what they logged leaves its band, and what the scale was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from ampmon.wire import BASELINE
from ampmon_server.model.aggregates.departure import BaselineBand, Departure, band, departure
from ampmon_server.model.words import count, plural, power_of_two
from ampmon_server.store import NotFound, Store, Stretch, Summary
from ampmon_server.store.engine.numbers import KINDS, split
from ampmon_server.store.updates.logged import Name


COLUMNS = 1000
"""Cells that are read of a run: enough where the baseline has values for a part of it only."""

Logged = Mapping[str, Name]
"""What a run logged, by name: of the lowest rank that has it, which the charts draw."""


@dataclass(frozen=True, slots=True)
class Distance:
    """Where a run's logged value leaves the baseline's band, in ``words`` and in numbers.

    ``step`` and ``side`` are null where it does not, ``until`` is the last step compared, null where nothing could be.
    ``scale`` is the loss scale at that step, null if unknown, and ``skipped`` the updates skipped up to it.
    """

    words: str
    step: int | None = None
    side: Literal["above", "below"] | None = None
    until: int | None = None
    scale: float | None = None
    scale_kind: str | None = None
    skipped: int | None = None


def logged_of(store: Store, run_id: UUID) -> Logged:
    """Names with "loss" in them come first. Raises NotFound."""
    found: dict[str, Name] = {}
    for each in store.scalar_names(run_id):
        found.setdefault(each.name, each)
    return dict(sorted(found.items(), key=lambda item: ("loss" not in item[0], item[0])))


@dataclass(frozen=True, slots=True)
class RunLoss:
    """The newest and the least value of a run's loss, under the ``name`` that it was logged by.

    ``kind`` is ``nan``, ``inf`` or ``-inf`` where the newest is not finite, and ``value`` is null then. ``least`` is of
    finite values, null where there are none.
    """

    name: str
    value: float | None
    kind: str | None
    least: float | None


def loss_of(store: Store, run_id: UUID) -> RunLoss | None:
    """The first logged name with "loss" in it; None where there is none, or no such run."""
    try:
        first = next(iter(logged_of(store, run_id).values()), None)
    except NotFound:
        return None
    if first is None or "loss" not in first.name:
        return None
    return RunLoss(first.name, first.value, first.value_kind, first.least)


def baseline_of(runs: Sequence[Summary], asked: UUID | None) -> Summary | None:
    """The run that was asked for, if it is among them, else the first that has the tag."""
    chosen = (run for run in runs if asked is not None and run.run_id == str(asked))
    tagged = (run for run in runs if BASELINE in run.tags)
    return next(chosen, None) or next(tagged, None)


def band_of(store: Store, run: Summary, name: str) -> BaselineBand | None:
    """The band of a baseline in what it logged under a name; None where that is too little."""
    cells = store.scalar_series(UUID(run.run_id), [name], Stretch(), columns=COLUMNS)
    return band(cells[name])


def departure_of(
    store: Store, baseline: Summary, run: Summary, name: str
) -> Departure | int | None:
    """As `departure`, over the steps that both have."""
    held = [logged_of(store, UUID(each.run_id)).get(name) for each in (baseline, run)]
    if None in held:
        return None
    stop = min(each.step for each in held if each) + 1
    cells = [
        store.scalar_series(UUID(each.run_id), [name], Stretch(0, stop), columns=COLUMNS)[name]
        for each in (baseline, run)
    ]
    return departure(*cells)


def distance(store: Store, baseline: Summary, run: Summary, name: str) -> Distance:
    """How far a run is from its baseline in what it logged under ``name``."""
    if run.run_id == baseline.run_id:
        return Distance("baseline")
    found = departure_of(store, baseline, run, name)
    if found is None:
        return Distance(f"too few values of {name} to compare")
    if isinstance(found, int):
        return Distance(f"{name} stays within the band, to step {count(found)}", until=found)
    at = store.series(UUID(run.run_id), start=0, stop=found.step + 1, by="step", columns=100)
    words = f"{name} {found.side} the band from step {count(found.step)}"
    if not len(at.updates):
        return Distance(words, found.step, found.side, found.until)
    skipped, held = int(at.updates["skipped"].sum()), float(at.updates["scale_last"][-1])
    scale, kind = split(held)
    words += f": scale {power_of_two(held)}, {plural(skipped, 'skipped step')} before"
    return Distance(words, found.step, found.side, found.until, scale, KINDS[kind], skipped)
