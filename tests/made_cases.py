"""Handmade cases for tests of the rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ampmon.numerics.histogram import BINS
from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis.diagnose import diagnose
from ampmon_server.model.aggregates import parameters as parameter_cells
from ampmon_server.model.aggregates import updates as update_cells
from ampmon_server.model.aggregates.merging import Cells, starts_of
from ampmon_server.model.aggregates.updates import EVENTS
from ampmon_server.model.case import (
    RECENT,
    Case,
    ParameterCase,
    RunEvent,
    ScalerCase,
    Skip,
    SkipCulprit,
)
from ampmon_server.model.scale_policy import ScalePolicy
from ampmon_server.model.series import Floats, GradientSeries, Totals, empty_gradients
from ampmon_server.model.thresholds import Thresholds
from made_series import START, parameters, rows


UPDATE_US = 100_000

NAMES = ("blocks.0.weight", "blocks.0.bias", "blocks.1.weight", "head.weight")


def torch_scaler(
    overflows: Any, updates: int, policy: ScalePolicy | None = None
) -> tuple[Floats, Floats, list[str], list[bool]]:
    """Scales before and after, events and skips as torch's scaler produces them.

    ``overflows(step, scale)`` returns whether a step overflows.
    """
    policy = policy or ScalePolicy()
    scale, tracker = policy.init_scale, 0
    before, after, events, skipped = [], [], [], []
    for step in range(updates):
        skip = bool(overflows(step, scale))
        was = scale
        if skip:
            scale, tracker, event = scale * policy.backoff_factor, 0, "backoff"
        elif (tracker := tracker + 1) == policy.growth_interval:
            grown = scale * policy.growth_factor
            tracker, event = 0, "grow" if grown <= 2.0**127 else "grow_capped"
            scale = min(grown, 2.0**127)
        else:
            event = "steady"
        if not scale > 2.0**-128:
            event = "dead"
        before.append(was)
        after.append(scale)
        events.append(event)
        skipped.append(skip)
    return np.array(before), np.array(after), events, skipped


def cells_of(
    before: Floats, after: Floats, events: list[str], skipped: list[bool], *, first: int = 0
) -> Cells:
    """Updates as cells of one update each."""
    step = np.arange(first, first + len(before))
    codes = [EVENTS.index(event) for event in events]
    return rows(step, START + step * UPDATE_US, before, after, codes, skipped)


def scaler(cells: Cells, **fields: Any) -> ScalerCase:
    """A scaler with these updates as cells of one, and the whole run in cells of 16."""
    whole = cells
    if len(cells):
        whole = update_cells.LAYOUT.merge(cells, starts_of(cells["first"] // 16))
    samples = fields.pop("samples", empty_gradients())
    made: dict[str, Any] = {
        "name": "default",
        "policy": ScalePolicy(),
        "first": cells[:RECENT],
        "updates": whole,
        "recent": cells[-RECENT:],
        "samples": samples,
        "parameters": no_parameters(),
    }
    return ScalerCase(**{**made, **fields})


def trained(overflows: Any, updates: int, *, cause: str = "inf", **fields: Any) -> ScalerCase:
    """A scaler driven as torch's, with a ledger of its skips in which every parameter is a culprit."""
    cells = cells_of(*torch_scaler(overflows, updates, fields.get("policy")))
    skips = [
        skip(int(step), cause=cause) for step in cells["first"][cells["skipped"] > 0][::-1][:1000]
    ]
    return scaler(cells, **{"skips": tuple(skips), **fields})


def skip(step: int, *, cause: str = "inf", culprits: int = len(NAMES), **fields: Any) -> Skip:
    """A ledger row whose culprits are the first ``culprits`` of NAMES, last one first."""
    made: dict[str, Any] = {
        "step": step,
        "time": START + step * UPDATE_US,
        "stream": "1",
        "rank": 0,
        "scaler": "default",
        "attempt": 0,
        "optimizer": "SGD",
        "path": "plain",
        "cause": cause,
        "scale": 65536.0,
        "scale_kind": None,
        "scale_after": 32768.0,
        "scale_after_kind": None,
        "culprits": [
            SkipCulprit(name, int("inf" in cause), int("nan" in cause))
            for name in NAMES[:culprits][::-1]
        ],
        "culprit_order": "learned",
        "culprit_parameters": culprits,
        "origin": None,
        "origin_module": None,
        "loss": None,
    }
    return Skip(**{**made, **fields})


def no_parameters(names: tuple[str, ...] = NAMES) -> ParameterCase:
    """Parameters of 1000 elements each, without samples."""
    cells = np.zeros(0, parameter_cells.layout(len(names)).dtype)
    return ParameterCase(names=names, numel=np.full(len(names), 1000), cells=cells)


def samples_of(
    steps: list[int],
    exponents: dict[int, float],
    *,
    elements: int = 10_000,
    zeros: float = 0.0,
    scale: float = 65536.0,
    looked: int | None = None,
) -> GradientSeries:
    """Identical samples with these shares of elements at each exponent of the scaled gradient, and of zeros."""
    looked = elements if looked is None else looked
    m = len(steps)
    histogram = np.zeros((m, BINS), np.int64)
    for exponent, share in exponents.items():
        histogram[:, exponent + 40] = round(share * elements)
    none = np.zeros(m, np.int64)
    top = 2.0 ** (max(exponents, default=0) + 0.5)
    magnitudes = 2.0 ** (np.arange(BINS) - 39.5)
    grain = 16 * elements / looked if looked < elements else 0.0
    on_grid = Totals(
        parameters=none + len(NAMES),
        elements=none + elements,
        looked=none + looked,
        zeros=none + round(zeros * elements),
        inf=none,
        nan=none,
        amax=none + top,
        sum_squares=(histogram * magnitudes**2).sum(1),
        histogram=histogram,
        variance=np.zeros((m, 3)),
        grain=none + grain,
    )
    if grain:
        share = on_grid.shares()
        on_grid = replace(on_grid, variance=share * (1 - share) * grain * elements)
    off_grid = Totals(*(np.zeros_like(getattr(on_grid, name)) for name in Totals.__slots__))
    step = np.array(steps, np.int64)
    return GradientSeries(step, START + step * UPDATE_US, np.full(m, scale), on_grid, off_grid)


def joined_samples(parts: list[GradientSeries]) -> GradientSeries:
    """Concatenate several series."""

    def joined(name: str) -> Totals:
        sides = [getattr(part, name) for part in parts]
        return Totals(
            *(np.concatenate([getattr(side, each) for side in sides]) for each in Totals.__slots__)
        )

    one = [np.concatenate([getattr(p, name) for p in parts]) for name in ("step", "time", "scale")]
    return GradientSeries(*one, on_grid=joined("on_grid"), off_grid=joined("off_grid"))


def parameters_of(
    shares: dict[str, float], *, samples: int = 4, numel: int = 10_000
) -> ParameterCase:
    """Parameters with these shares of subnormal elements, all on the grid."""
    names, n = tuple(shares), len(shares)
    looked = np.full((samples, n), numel)
    histogram = np.zeros((samples, n, BINS), np.int64)
    small = np.array([round(share * numel) for share in shares.values()])
    histogram[..., 40 - 20] = small
    histogram[..., 40 - 5] = numel - small
    steps = np.arange(samples) * 10
    cells = parameters(steps, START + steps, histogram, looked, np.ones((samples, n))).cells
    return ParameterCase(names=names, numel=np.full(n, numel), cells=cells)


def event(kind: str, **detail: Any) -> RunEvent:
    return RunEvent(START, kind, "0", 0, "", 0, 0, None, detail)


def case(*scalers: ScalerCase, logged: Mapping[str, Cells] | None = None, **fields: Any) -> Case:
    """A run judged one second after its newest update. ``logged`` has the steps of the first scaler."""
    if logged is not None:
        scalers = replace(scalers[0], logged=logged), *scalers[1:]
    newest = max((int(s.recent["time_last"][-1]) for s in scalers if len(s.recent)), default=START)
    made: dict[str, Any] = {
        "run_id": "0" * 32,
        "now": newest + 1_000_000,
        "last_time": newest,
        "update_us": float(UPDATE_US),
        "updates": sum(int(s.updates["n"].sum()) for s in scalers),
        "skipped": sum(int(s.updates["skipped"].sum()) for s in scalers),
        "attempts": 1,
        "scalers": tuple(scalers),
    }
    return Case(**{**made, **fields})


def found(of: Case | ScalerCase, thresholds: Thresholds | None = None) -> list[Finding]:
    """The findings, most severe first."""
    run = case(of) if isinstance(of, ScalerCase) else of
    return list(diagnose(run, thresholds or Thresholds()).findings)


def rules_of(of: Case | ScalerCase) -> list[str]:
    """The rules of the findings, most severe first."""
    return [finding.rule for finding in found(of)]
