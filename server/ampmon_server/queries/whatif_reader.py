"""Reads from the store what a run would be at other scales and under other policies, for API calls and charts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast
from uuid import UUID
from weakref import WeakKeyDictionary

from ampmon.numerics.formats import FP32
from ampmon_server.analysis.diagnosis.diagnose import diagnose
from ampmon_server.analysis.flushed import Flushed, flushed_in
from ampmon_server.analysis.policy.history import History
from ampmon_server.analysis.policy.scalers import Kind, Setting, changed
from ampmon_server.analysis.policy.simulate import Simulator
from ampmon_server.analysis.policy.simulation import Recommended
from ampmon_server.analysis.whatif import of_parameter, of_samples
from ampmon_server.charts.parts.source import ScaleSource
from ampmon_server.model.series import GradientSeries
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.store.engine.errors import BadQuery, NotFound
from ampmon_server.store.pages.recent import Recent
from ampmon_server.store.samples.parameters import ParameterQuery
from ampmon_server.store.store import Store


KEPT_S = 60.0
"""Seconds to keep what sliders and zooms request repeatedly. A change of the run ends them early."""

# Weak, so that what was read from a closed store goes with it.
_advice: WeakKeyDictionary[Store, Recent[Recommended]] = WeakKeyDictionary()
_samples: WeakKeyDictionary[Store, Recent[NewestSamples]] = WeakKeyDictionary()
_simulators: WeakKeyDictionary[Store, Recent[Simulator]] = WeakKeyDictionary()

NONE = "no sampled fp16-representable gradient is finite"


class NewestSamples(NamedTuple):
    """Samples, and what they show that fp16 flushed at the newest scale; None if they do not show it."""

    samples: GradientSeries
    flushed: Flushed | None


def measured(
    store: Store, run_id: UUID, stream: int | None = None, parameter: str | None = None
) -> ScaleSource | str:
    """Return the newest gradient of all parameters on fp16's grid, or of one, or a reason why there is none.

    Raises NotFound if the run or the stream does not exist.
    """
    if parameter is not None:
        return _of_parameter(store, run_id, stream, parameter)
    samples, flushed = newest_samples(store, run_id, stream)
    gradient = of_samples(samples)
    return NONE if gradient is None else ScaleSource(gradient, flushed)


def newest_samples(store: Store, run_id: UUID, stream: int | None = None) -> NewestSamples:
    """Return the newest samples of all gradients of a scaler. Raises NotFound."""

    def read() -> NewestSamples:
        samples = store.gradient_samples(run_id, stream=stream)
        return NewestSamples(samples, flushed_in(samples))

    kept = _samples.setdefault(store, Recent(most=8, life_s=KEPT_S))
    return kept.get((run_id, store.held(run_id), stream), read)


def _of_parameter(store: Store, run_id: UUID, stream: int | None, name: str) -> ScaleSource | str:
    try:
        sampled = store.parameters(run_id, stream=stream, page=ParameterQuery(name=name))
    except NotFound:
        if not len(newest_samples(store, run_id, stream).samples):
            return NONE
        raise
    if not sampled.parameters:
        return f"there is no {name!r} in the newest sample"
    found, scale = sampled.parameters[0], sampled.scale or 0.0
    if not 0 < scale <= FP32.max or not found.looked or found.inf or found.nan or not found.on_grid:
        return f"the newest gradient of {name!r} is not finite, not fp16-representable, or was not sampled"
    counts = found.histogram, found.zeros, found.looked
    return ScaleSource(of_parameter(scale, *counts, found.amax or 0.0, sampled.step), None)


def recommended(
    store: Store, run_id: UUID, thresholds: Thresholds, stream: int | None = None
) -> Recommended:
    """Return what the run's findings recommend, and its settings for a stream's scaler. Raises NotFound."""

    def read() -> Recommended:
        found = diagnose(store.case(run_id), thresholds).findings
        return Recommended.of(found, store.scaler_name(run_id, stream=stream))

    kept = _advice.setdefault(store, Recent(most=64, life_s=KEPT_S))
    return kept.get((run_id, store.held(run_id), thresholds, stream), read)


def simulator_of(store: Store, run_id: UUID, stream: int | None = None) -> Simulator:
    """Return the simulator of a scaler's stored updates, kept a minute or until the run changes. Raises NotFound."""
    kept = _simulators.setdefault(store, Recent(most=8, life_s=KEPT_S))
    return kept.get(
        (run_id, store.held(run_id), stream),
        lambda: Simulator(store.history(run_id, stream=stream)),
    )


def tried(history: History, given: Mapping[str, float | str | None], prefix: str = "") -> Setting:
    """Return the setting to replay: the ``policy``, torch's by default, with the given values.

    Raises BadQuery, which names the invalid value with ``prefix`` before it.
    """
    numbers = {name: value for name, value in given.items() if not isinstance(value, str)}
    try:
        return changed(cast(Kind, given.get("policy") or "torch"), history.policy, **numbers)
    except ValueError as error:
        name, words = error.args
        raise BadQuery(prefix + name, words) from error
