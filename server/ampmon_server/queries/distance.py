"""The distance of runs from a baseline: where their logged values leave its band, and the loss scale there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from ampmon.wire import BASELINE
from ampmon_server.model.aggregates.departure import BaselineBand, Departure, band, departure
from ampmon_server.model.words import NONE, count, measure, plural, power_of_two
from ampmon_server.store.engine.errors import NotFound, Unreadable
from ampmon_server.store.engine.numbers import KINDS, join, split_named
from ampmon_server.store.pages.windows import WHOLE, Stretch
from ampmon_server.store.runs.runs import Summary
from ampmon_server.store.store import Store
from ampmon_server.store.updates.logged import Name, lowest


COLUMNS = 1000
"""The number of cells read of a run. It is enough even if the baseline has values for only a part of the run."""

Logged = Mapping[str, Name]
"""What a run logged, by name: the values of the lowest rank that has the name, which the charts draw."""


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


def logged_of(store: Store, run_id: UUID) -> Logged:
    """Return what a run logged, names with "loss" in them first. Raises NotFound."""
    found = lowest(store.scalar_names(run_id))
    return dict(sorted(found.items(), key=lambda item: ("loss" not in item[0], item[0])))


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
        first = next(iter(logged_of(store, run_id).values()), None)
    except (NotFound, Unreadable):  # a damaged run must not hide the losses of others
        return None
    if first is None or "loss" not in first.name:
        return None
    value = join(first.value, KINDS.index(first.value_kind))
    words = NONE if value is None else measure(value)
    if first.least is not None:
        words += f" (min\u00a0{measure(first.least)})"
    return RunLoss(first.name, first.value, first.value_kind, first.least, words)


def baseline_of(runs: Sequence[Summary], asked: UUID | None) -> Summary | None:
    """Return the run ``asked`` for if it is among ``runs``, else the first with the baseline tag."""
    chosen = (run for run in runs if asked is not None and run.run_id == str(asked))
    tagged = (run for run in runs if BASELINE in run.tags)
    return next(chosen, None) or next(tagged, None)


def band_of(store: Store, run: Summary, name: str) -> BaselineBand | None:
    """Return the band of a baseline for one logged name. None if it has too few values."""
    return band(store.scalar_series(UUID(run.run_id), name, WHOLE, columns=COLUMNS))


def departure_of(
    store: Store, baseline: Summary, run: Summary, name: str
) -> Departure | int | None:
    """Return the `departure` of a run over the steps that both runs have; None if they cannot be compared."""
    held = [logged_of(store, UUID(each.run_id)).get(name) for each in (baseline, run)]
    if None in held:
        return None
    stop = min(each.step for each in held if each) + 1
    cells = [
        store.scalar_series(UUID(each.run_id), name, Stretch(0, stop), columns=COLUMNS)
        for each in (baseline, run)
    ]
    return departure(*cells)


def distance(store: Store, baseline: Summary, run: Summary, name: str) -> Distance:
    """Return how far a run is from its baseline in the values logged under ``name``."""
    if run.run_id == baseline.run_id:
        return Distance("baseline")
    found = departure_of(store, baseline, run, name)
    if found is None:
        return Distance(f"too few values of {name} to compare")
    if isinstance(found, int):
        return Distance(f"{name} stays within the band, to step {count(found)}", until=found)
    run_id = UUID(run.run_id)
    holder = logged_of(store, run_id)[name]
    # The step is one of the scaler after whose updates the value was logged.
    stream = int(holder.stream) if holder.scaler else None
    at = store.series(run_id, stream=stream, stop=found.step + 1, columns=100, sampled=False)
    words = f"{name} {found.side} the band from step {count(found.step)}"
    if len({each["scaler"] for each in run.streams}) > 1:
        words += f" of {at.scaler.name}"
    if not len(at.updates):
        return Distance(words, found.step, found.side, found.until)
    skipped, held = int(at.updates["skipped"].sum()), float(at.updates["scale_last"][-1])
    words += f": scale {power_of_two(held)}, {plural(skipped, 'skipped step')} before"
    return Distance(words, found.step, found.side, found.until, *split_named(held), skipped)
