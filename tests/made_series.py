"""Handmade and Hypothesis-generated series for tests of charts, and readers of a chart's data."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from ampmon.numerics.histogram import BINS, SUBNORMAL_BINS
from ampmon_server.analysis.flushed import flushed_in
from ampmon_server.analysis.policy.history import History
from ampmon_server.analysis.policy.scalers import changed
from ampmon_server.analysis.policy.simulation import Path, Simulation, Skips
from ampmon_server.charts import ParameterSource, ReplaySource, Source, View
from ampmon_server.charts.parts.rows import LEVELS
from ampmon_server.model.aggregates import scalars as logged_cells
from ampmon_server.model.aggregates.gradients import empty as no_gradients
from ampmon_server.model.aggregates.gradients import of_series
from ampmon_server.model.aggregates.merging import Cells, starts_of
from ampmon_server.model.aggregates.parameters import layout, of_samples
from ampmon_server.model.aggregates.updates import EVENTS, LAYOUT, ROWS, empty, of_rows
from ampmon_server.model.parameter_statistics import STATISTICS
from ampmon_server.model.scale_policy import ScalePolicy
from ampmon_server.model.series import (
    GradientSeries,
    ModuleSample,
    ParameterSample,
    RankRows,
    Resume,
    Totals,
    empty_gradients,
)
from batches import counted


# An example is a whole series, and most tests draw every chart for it.
SOME = settings(max_examples=settings().max_examples // 2)

START = 1_700_000_000_000_000
PARAMETER = "blocks.0.part.0.weight"
"""The name of the first parameter."""

OWN_AXIS = {"activations", "histogram", "whatif"}
"""The charts with their own x axis. All others are along the run."""


def updates(
    scales: list[float],
    *,
    skipped: set[int] = frozenset(),
    events: dict[int, str] | None = None,
    first: int = 0,
) -> Cells:
    """Updates 100 ms apart from step ``first`` on, as cells of one."""
    step = np.arange(first, first + len(scales))
    scale = np.array(scales, np.float64)
    codes = [EVENTS.index((events or {}).get(int(s), "steady")) for s in step]
    return rows(
        step,
        START + step * 100_000,
        scale,
        np.append(scale[1:], scale[-1:]),
        np.array(codes, np.uint8),
        np.isin(step, list(skipped)),
    )


def rows(*columns: Any) -> Cells:
    """Cells of one from the columns step, time, scale, scale after, event and skipped."""
    step, time, scale, after, event, skipped = columns
    made = np.zeros(len(step), ROWS)
    made["step"], made["time"], made["event"], made["skipped"] = step, time, event, skipped
    made["scale"], made["scale_after"] = scale, after
    made["duration_ns"], made["memory_peak"] = 100_000_000, 10**9
    return of_rows(made)


def rolled_up(scales: np.ndarray, *, skipped_every: int = 0, span: int = 256) -> Cells:
    """Many updates merged into cells of ``span``."""
    parts = []
    for first in range(0, len(scales), 2**14):
        part = scales[first : first + 2**14]
        step = np.arange(first, first + len(part))
        skipped = step % skipped_every == 0 if skipped_every else step < 0
        none = np.zeros(len(part), np.int64)
        cells = rows(step, START + step * 100_000, part, part, none, skipped)
        parts.append(LAYOUT.merge(cells, starts_of(step // span)))
    return np.concatenate(parts)


def wild(n: int, seed: np.random.Generator) -> Cells:
    """Cells of one with gaps, every event, and scales that are dead, infinite, negative or NaN."""
    step = np.sort(seed.choice(n * 5 // 4, n, replace=False))
    scale = 2.0 ** seed.integers(-140, 128, n)
    odd = seed.choice([1.0, 1.0, 1.0, 0.0, np.inf, np.nan, -1.0], n)
    return rows(
        step,
        START + step * 100_000,
        scale * odd,
        np.roll(scale, -1),
        seed.integers(0, len(EVENTS), n),
        seed.random(n) < 0.1,
    )


def totals(
    histograms: np.ndarray, zeros: list[int], inf: list[int] | None = None, *, runs: float = 0
) -> Totals:
    """Totals of 4 parameters at each of m samples. Every element is in ``histograms`` [m, 64], ``zeros`` or ``inf``.

    With ``runs``, the totals of a sample of that many runs of identical elements.
    """
    m = len(histograms)
    lost = np.array(inf or [0] * m)
    looked = histograms.sum(1) + zeros + lost
    grain = looked / runs if runs else np.zeros(m)
    exact = Totals(
        parameters=np.where(looked > 0, 4, 0),
        elements=looked,
        looked=looked,
        zeros=np.array(zeros),
        inf=lost,
        nan=np.zeros(m, np.int64),
        amax=np.ones(m),
        sum_squares=np.ones(m),
        histogram=histograms,
        variance=np.zeros((m, 3)),
        grain=grain,
    )
    share = exact.shares()
    return replace(exact, variance=share * (1 - share) * (grain * looked)[:, None])


def histograms(counts: list[dict[int, int]]) -> np.ndarray:
    """Histograms [m, 64] from counts by exponent."""
    made = np.zeros((len(counts), BINS), np.int64)
    for row, sample in enumerate(counts):
        for exponent, count in sample.items():
            made[row, exponent + 40] = count
    return made


def nothing(m: int) -> Totals:
    return totals(np.zeros((m, BINS), np.int64), [0] * m)


def gradients(
    steps: list[int],
    on_grid: Totals | None = None,
    off_grid: Totals | None = None,
    *,
    scales: Sequence[float] | None = None,
) -> Cells:
    """Samples 100 ms apart as cells of one, at a scale of 1 by default."""
    step = np.array(steps, np.int64)
    none = nothing(len(steps))
    series = GradientSeries(
        step,
        START + step * 100_000,
        np.array(scales or [1.0] * len(steps), np.float64),
        on_grid or none,
        off_grid or none,
    )
    return of_series(series)


def modules(
    counts: dict[str, dict[int, int]],
    *,
    zeros: dict[str, int] | None = None,
    inf: dict[str, int] | None = None,
    forward: dict[str, float] | None = None,
    step: int = 7,
    **fields: Any,
) -> ModuleSample:
    """A sample of modules in forward order, from gradient counts by exponent. The largest output is 1 by default."""
    names, n = tuple(counts), len(counts)
    histogram = histograms(list(counts.values()))
    lost = np.array([(inf or {}).get(name, 0) for name in names], np.int64)
    top = np.where(histogram.any(1), BINS - 1 - histogram[:, ::-1].argmax(1) - 40.0, -np.inf)
    statistics = counted(
        histogram,
        zeros=[(zeros or {}).get(name, 0) for name in names],
        inf=lost,
        amax=np.where(lost > 0, np.inf, 2.0**top),
    )
    made: dict[str, Any] = {
        "step": step,
        "time": START + step * 100_000,
        "scale": 2.0**16,
        "names": names,
        "kinds": ("Linear",) * n,
        "elements": statistics.looked,
        "statistics": statistics,
        "forward": np.array([(forward or {}).get(name, 1.0) for name in names]),
    }
    return ModuleSample(**{**made, **fields})


def source(
    of: Cells | None = None,
    at: Cells | None = None,
    through: ModuleSample | None = None,
) -> Source:
    rows = of if of is not None else empty()
    return Source(
        rows,
        at if at is not None else no_gradients(),
        modules=through,
        scalars={"loss": logged(rows["first"], rows["time_first"], 1.0 / (1.0 + rows["first"]))},
        parameters=_two_parameters(at) if at is not None else None,
        replayed=replayed(rows["first"]),
        ranks=_two_ranks(rows),
    )


def replayed(step: np.ndarray, whole: bool = True) -> ReplaySource | None:
    """A replay recorded at 2^10 and simulated at 2^10 to 2^12, with 2^11 expected; None without steps."""
    if not len(step):
        return None
    step = np.sort(step)
    none, scales = np.zeros(len(step), bool), np.full(len(step), 65536.0)
    of = {"policy": ScalePolicy(), "samples": empty_gradients(), "updates": len(step) + (not whole)}
    history = History.of(step, scales, none, none, **of)
    step = step[:: -(-len(step) // 50)]  # the smallest number of places that is requested
    level = np.full(len(step), 10.0)
    was = changed("torch", ScalePolicy())
    would = changed("torch", ScalePolicy(), growth_interval=50)
    recorded, simulated = (
        Simulation(setting, history.replayed, skips, (), None, None)
        for setting, skips in ((was, Skips(9, 9, 9)), (would, Skips(1, 2.2, 3)))
    )
    before, after = Path(step, level, level, level), Path(step, level, level + 1, level + 2)
    return ReplaySource(history, recorded, before, simulated, after)


def _two_parameters(at: Cells) -> ParameterSource:
    """Two parameters with only zeros at the samples ``at``."""
    shape = len(at), 2
    none, looked = np.zeros((*shape, BINS), np.int64), np.full(shape, 10)
    return parameters(
        at["first"],
        at["time_first"],
        none,
        looked,
        np.zeros(shape),
    )


def x_of(rows: Cells, view: View) -> np.ndarray:
    return rows["time_first"] if view.x == "time" else rows["first"]


def within(rows: Cells, view: View) -> Cells:
    """The cells of one that a view shows."""
    x = x_of(rows, view)
    low, high = (view.start or 0), (2**62 if view.stop is None else view.stop)
    return rows[(x >= low) & (x < high)]


def read(spec: dict[str, str]) -> np.ndarray:
    flat = np.frombuffer(b64decode(spec["bdata"]), "<" + spec["dtype"])
    shape = spec.get("shape")
    return flat.reshape([int(n) for n in shape.split(",")]) if shape else flat


def traces(figure: dict[str, Any], **keys: Any) -> list[dict[str, Any]]:
    """The traces with these values."""
    return [t for t in figure["data"] if all(t.get(key) == value for key, value in keys.items())]


@st.composite
def sources(draw: st.DrawFn) -> Source:
    """Any series, with dead, infinite or NaN scales, clocks that were set back, and samples anywhere."""
    n = draw(st.integers(1, 200))
    seed = np.random.default_rng(draw(st.integers(0, 2**32)))
    first = draw(st.sampled_from([0, 7, 2**31 - 50]))
    step = np.arange(first, first + n)
    jitter = seed.integers(0, draw(st.sampled_from([1, 10**6])), n)
    scale = 2.0 ** seed.integers(*draw(st.sampled_from([(10, 18), (-140, 128)])), n)
    odd = draw(st.sampled_from([1.0, 0.0, np.inf, np.nan, -1.0, 1000.0]))
    scale = np.where(seed.random(n) < 0.1, scale * odd, scale)
    time = START + step * 100_000 + jitter
    series = rows(
        step,
        time,
        scale,
        np.roll(scale, -1),
        seed.integers(0, len(EVENTS), n).astype(np.uint8),
        seed.random(n) < draw(st.sampled_from([0.0, 0.02, 0.5, 1.0])),
    )
    picked = np.sort(seed.choice(n, draw(st.integers(0, n)), replace=False))
    grads = GradientSeries(
        step[picked],
        time[picked],
        scale[picked],
        _any_totals(draw, seed, len(picked)),
        _any_totals(draw, seed, len(picked)),
    )
    return Source(
        series,
        of_series(grads),
        modules=draw(st.none() | _any_modules()),
        scalars=_any_scalars(draw, seed, step, time),
        parameters=draw(st.none() | _any_parameters(step[picked], time[picked])),
        sample=draw(st.none() | _any_sample()),
        resumes=_any_resumes(draw, series),
        flushed=flushed_in(grads),
        ranks=_two_ranks(series),
        newest=draw(st.booleans()),
        replayed=replayed(step),
    )


def _two_ranks(cells: Cells) -> tuple[RankRows, ...]:
    """Two ranks at some steps. The second lacks some of them and has another scale at others."""
    rows = cells[:: max(len(cells) // 30, 1)].copy()
    other = rows[::2].copy()
    other["scale_first"][::3] *= 2
    return tuple(RankRows(rank, 2, rows["first"], part) for rank, part in ((0, rows), (3, other)))


def _any_resumes(draw: st.DrawFn, cells: Cells) -> tuple[Resume, ...]:
    """Resumes at some updates, with unknown or odd scales before."""
    starts = cells[:: draw(st.sampled_from([1000, 40, 1]))]
    before = draw(st.sampled_from([None, 1024.0, np.inf]))
    return tuple(
        Resume(int(each["first"]), int(each["time_first"]), before, float(each["scale_first"]), odd)
        for each, odd in zip(starts, draw(st.permutations([True, False])) * 100, strict=False)
    )


def logged(step: np.ndarray, time: np.ndarray, value: np.ndarray) -> Cells:
    """Logged values as cells of one, without user steps."""
    made = np.zeros(len(step), logged_cells.ROWS)
    made["step"], made["time"], made["value"], made["user_step"] = step, time, value, -1
    return logged_cells.of_rows(made)


def _any_scalars(
    draw: st.DrawFn, seed: np.random.Generator, step: np.ndarray, time: np.ndarray
) -> dict[str, Cells]:
    """Values of any size, finite or not, at some of the steps, under odd names."""
    found = {}
    for name in draw(st.sampled_from([(), ("loss",), ("loss", "<b>&amp;", "lr", "a" * 200)])):
        picked = np.sort(seed.choice(len(step), seed.integers(0, len(step) + 1), replace=False))
        odd = np.array([1.0, 1.0, 0.0, np.nan, np.inf, -np.inf, 1e307])
        value = seed.normal(size=len(picked)) * seed.choice(odd[: seed.integers(1, 8)], len(picked))
        found[name] = logged(step[picked], time[picked], value)
    return found


@st.composite
def _any_modules(draw: st.DrawFn) -> ModuleSample:
    """Modules with odd names, with or without gradients, that overflowed or output only zeros."""
    number = draw(st.integers(1, 70))
    seed = np.random.default_rng(draw(st.integers(0, 2**32)))
    odd = draw(st.sampled_from(["", "<b>", "&amp;", "a" * 200]))
    names = [f"block.{index}{odd}" for index in range(number)]
    most = draw(st.sampled_from([0, 1, 10**9]))

    def some() -> dict[str, int]:
        return {name: int(seed.integers(0, most + 1)) for name in names if seed.random() < 0.5}

    return modules(
        {name: {int(seed.integers(-40, 24)): int(seed.integers(0, most + 1))} for name in names},
        zeros=some(),
        inf=some(),
        forward={name: float(seed.choice([0.0, 1.0, 6e4, np.inf, np.nan])) for name in names},
        scale=float(seed.choice([2.0**16, 1000.0, 0.0, np.inf, np.nan])),
        left_out=draw(st.sampled_from([(), ("encoder",)])),
    )


@st.composite
def _any_parameters(draw: st.DrawFn, step: np.ndarray, time: np.ndarray) -> ParameterSource:
    """Samples of any number of parameters, some without data or with odd magnitudes."""
    number = draw(st.sampled_from([1, 2, 148, 400]))
    seed = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = len(step), number
    looked = seed.integers(0, 3, shape) * 100
    histogram = np.zeros((*shape, BINS), np.int64)
    histogram[..., 20] = seed.integers(0, 101, shape) * (looked > 0)
    odd = seed.choice([0.0, 1e-3, 6e4, np.inf, np.nan], shape)
    return parameters(
        step,
        time,
        histogram,
        looked,
        odd,
    )


@st.composite
def _any_sample(draw: st.DrawFn) -> ParameterSample:
    """A sample of one parameter with elements of any magnitude, or only zeros, inf or NaN."""
    counts = {
        draw(st.integers(-40, 23)): draw(st.integers(1, 10**9))
        for _ in range(draw(st.integers(0, 5)))
    }
    zeros, inf, nan = (draw(st.sampled_from([0, 0, 7])) for _ in range(3))
    amax = draw(st.sampled_from([0.0, 1e-3, 6e4, np.inf, np.nan]))
    return sample(counts, zeros=zeros, inf=inf, nan=nan, amax=amax)


def sample(
    counts: dict[int, int],
    *,
    zeros: int = 0,
    inf: int = 0,
    nan: int = 0,
    amax: float = 1.0,
    elements: int = 0,
) -> ParameterSample:
    """One parameter at step 7 and scale 1024. ``counts`` are by exponent, and it has at least ``elements`` elements."""
    statistics = counted(
        histograms([counts]), zeros=zeros, inf=inf, nan=nan, amax=amax, sum_squares=amax
    )
    return ParameterSample(7, 1024.0, max(elements, int(statistics.looked[0])), statistics)


def parameters(
    step: np.ndarray,
    time: np.ndarray,
    histogram: np.ndarray,
    looked: np.ndarray,
    amax: np.ndarray,
    **fields: Any,
) -> ParameterSource:
    """Cells of one from m samples of n parameters, [m, n]. Elements not in ``histogram`` are zero."""
    statistics = {
        "looked": looked,
        "elements": looked,
        "zeros": looked - histogram.sum(-1),
        "on_grid": looked,
        "amax": amax,
        "sum_squares": amax,
        "subnormal": histogram[..., :SUBNORMAL_BINS].sum(-1),
    }
    number = looked.shape[1]
    places, of = np.arange(number), layout(number)
    cells = of_samples(step, time, np.ones(len(step)), statistics.__getitem__, places, of)
    names = tuple(f"blocks.{index // 12}.part.{index}.weight" for index in range(number))
    return ParameterSource(**{"names": names, "cells": cells, **fields})


def _any_totals(draw: st.DrawFn, seed: np.random.Generator, m: int) -> Totals:
    most = draw(st.sampled_from([0, 1, 10**9]))
    counts = seed.integers(0, most + 1, (m, BINS)) * (seed.random((m, BINS)) < 0.4)
    zeros = seed.integers(0, most + 1, m).tolist()
    lost = seed.integers(0, draw(st.sampled_from([1, 5])), m).tolist()
    return totals(counts, zeros, lost, runs=draw(st.sampled_from([0, 1, 1024])))


@st.composite
def views(draw: st.DrawFn) -> View:
    """Any view of such series: everything, a part, or an empty stretch."""
    start = draw(st.none() | st.integers(0, 250))
    stop = None if start is None else start + draw(st.integers(1, 250))
    x = draw(st.sampled_from(["step", "time"]))
    if x == "time" and start is not None and stop is not None:
        start, stop = START + start * 100_000, START + stop * 100_000
    of = draw(st.sampled_from(["fp16", "bf16", "e4m3", "e5m2"]))
    y = draw(st.sampled_from(["linear", "log"]))
    return View(
        start,
        stop,
        draw(st.integers(10, 3000)),
        x,
        of,
        y,
        statistic=draw(st.sampled_from([*STATISTICS])),
        level=draw(st.sampled_from([None, *LEVELS])),
        parameter=draw(st.sampled_from([None, PARAMETER, "<b>"])),
    )
