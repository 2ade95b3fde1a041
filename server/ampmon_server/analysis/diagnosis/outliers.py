"""Finds what skipped updates have in common if unusual batches caused them, and no growth of the scale."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ampmon.numerics.histogram import gradient_norm
from ampmon_server.analysis.diagnosis.ledger import skipped_updates
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.aggregates.scalars import mean, not_finite
from ampmon_server.model.case import ScalerCase
from ampmon_server.model.names import training_loss
from ampmon_server.model.series import Flags, Floats, GradientSeries, Ints


MOST = 0.75
"""Least share of gaps between skips that are multiples of a period, and of far outlier losses that skip."""
GAPS = 3
"""Fewer gaps than this may be equal by chance."""
HEAVY = 4
"""A loss this many times the usual one is an outlier. The losses of ordinary batches vary less."""
FAR = 32
"""A loss this many times the usual one overflows at scales far below those that fit other batches."""
LARGE = 1000
"""If it is usually above this where only a scale below 1 fits, a loss is a sum, or its targets are large."""
RISEN = 10
"""A loss that is usually this many times its first value has risen instead of fallen."""
BESIDE = 4
"""The usual loss is the median of a cell and this many on each side, because losses fall during training."""
NEAR = 10
"""Gradients sampled within this many updates of a skip show the training around it."""
SAMPLES = 3
ENOUGH = 3
"""A scale is proven without a skip for this many times their mean gap, which happens by chance in 5 % of cases."""


@dataclass(frozen=True, slots=True)
class LossPattern:
    """The loss logged under ``name`` at skipped updates: ``ratio`` times the usual one at ``heavy`` of them.

    It certainly was at ``surely`` of those: the others only share a cell with one. ``known`` says whether the loss of
    every skipped update was logged. The usual one is ``newest`` now, and ``growth`` times the first value.
    """

    name: str
    ratio: float
    heavy: int
    surely: int
    known: bool
    newest: float
    growth: float

    @property
    def has_risen(self) -> bool:
        return RISEN < self.growth < np.inf


@dataclass(frozen=True, slots=True)
class CulpritPattern:
    """In ``everywhere`` of ``known`` skips, every parameter was a culprit. ``first`` led in ``times`` of the others."""

    known: int
    everywhere: int
    first: str | None
    times: int


@dataclass(frozen=True, slots=True)
class Common:
    """What updates skipped at ``steps`` [s] have in common. ``proven`` is a scale that lets such batches through."""

    steps: Ints
    period: int | None
    loss: LossPattern | None
    culprits: CulpritPattern
    norm_ratio: float | None
    proven: float | None

    @property
    def is_loss_heavy(self) -> bool:
        """Whether the loss was an outlier at more than half of the skips."""
        return self.loss is not None and 2 * self.loss.heavy > len(self.steps)


def common_of(scaler: ScalerCase, steps: Ints) -> Common:
    """Return what the updates skipped at ``steps``, at least one, have in common."""
    return Common(
        steps,
        period_of(steps),
        loss_at(scaler, steps),
        culprits_of(scaler, steps),
        norm_ratio(scaler, steps),
        proven_scale(scaler.recent, steps),
    )


def period_of(steps: Ints) -> int | None:
    """Return the period, in updates, of steps whose gaps are nearly all multiples of it. None if there is none."""
    gaps = np.diff(steps)
    if len(gaps) < GAPS:
        return None
    # A gap that occurred: the mean of two may be no multiple of the period.
    period = int(np.quantile(gaps, 0.5, method="lower"))
    if period < 2 or np.mean(gaps % period == 0) < MOST:
        return None
    return period


def loss_at(scaler: ScalerCase, steps: Ints) -> LossPattern | None:
    """Return the training loss at ``steps``, some of the newest skips. None if no loss was logged.

    A cell of several updates has only the step of its largest value, which stands for all skips in the cell. A value
    logged before `scale()` is stored with the update before, so both steps are checked.
    """
    known = _known(scaler.logged)
    if known is None:
        return None
    skips = scaler.recent["skip_first"][scaler.recent["skipped"] > 0]
    at_skip = known.is_times(HEAVY) & known.is_at(skips)
    both = np.stack([steps - 1, steps])
    place = known.place(both)
    holding = known.cells[place[1]]
    is_logged = (holding["n"] == holding["last"] - holding["first"] + 1) & (
        holding["first"] <= steps
    )
    ratios = known.cells["value_max"][at_skip] / known.usual[at_skip]
    largest = known.cells["value_max_step"][at_skip]
    # A loss that may be negative has no ratio.
    first = float(known.cells["value_first"][0]) if (known.cells["value_min"] > 0).all() else np.inf
    return LossPattern(
        name=known.name,
        ratio=float(np.median(ratios)) if len(ratios) else 1.0,
        heavy=int(at_skip[place].any(0).sum()),
        surely=int(np.isin(both, largest).any(0).sum()),
        known=bool(is_logged.all()),
        newest=float(known.usual[-1]),
        growth=float(known.usual[-1]) / first,
    )


def outlier_skips(cells: Cells, logged: Mapping[str, Cells]) -> Flags:
    """Return which updates were skipped for a loss so far from the usual one that nearly all such updates are, [n]."""
    outlier = np.zeros(len(cells), bool)
    skipped = np.flatnonzero(cells["skipped"])
    known = _known(logged) if len(skipped) else None
    if known is None:
        return outlier
    steps = cells["skip_first"][skipped]
    far = known.is_times(FAR) & (known.cells["last"] >= cells["first"][0])
    at_skip = far & known.is_at(steps)
    if at_skip.sum() >= MOST * far.sum():
        outlier[skipped] = at_skip[known.place(np.stack([steps - 1, steps]))].any(0)
    return outlier


@dataclass(frozen=True, slots=True)
class _KnownLoss:
    """The cells of the training loss with finite values, and the usual value around each."""

    name: str
    cells: Cells
    usual: Floats

    def is_times(self, ratio: float) -> Flags:
        """Which cells have a value of at least ``ratio`` times the usual one, [n]."""
        # Divided, because a multiple of the usual loss may overflow.
        return (self.usual > 0) & (self.cells["value_max"] / ratio >= self.usual)

    def is_at(self, skips: Ints) -> Flags:
        """Which cells have their largest value at a skip, [n]."""
        return np.isin(self.cells["value_max_step"], [*skips - 1, *skips])

    def place(self, steps: Ints) -> Ints:
        """The places of the cells of these steps, or of the cells that follow."""
        return np.minimum(np.searchsorted(self.cells["last"], steps), len(self.cells) - 1)


def _known(logged: Mapping[str, Cells]) -> _KnownLoss | None:
    name = training_loss(logged)
    if name is None:
        return None
    cells = logged[name]
    cells = cells[not_finite(cells) < cells["n"]]
    if not len(cells):
        return None
    # Reflected, because an outlier at an end counts once then, as others do.
    around = sliding_window_view(np.pad(typical(cells), BESIDE, mode="reflect"), 2 * BESIDE + 1)
    return _KnownLoss(name, cells, np.median(around, axis=1))


def outlier_ratio(cells: Cells, first: int, last: int) -> float | None:
    """Return the loss from step ``first`` to ``last`` over that before. None if it is not finite or no outlier."""
    size = mean(cells)
    # The update before ``first`` may hold a loss of ``first``, as in `loss_at`.
    before = size[cells["last"] < first - 1][-2 * BESIDE - 1 :]
    inside = size[(cells["first"] >= first) & (cells["last"] <= last)]
    usual = float(np.median(before)) if len(before) else 0.0
    if not len(inside) or not usual > 0:
        return None
    ratio = float(np.median(inside)) / usual
    heavy = int((inside / HEAVY >= usual).sum())
    return ratio if HEAVY <= ratio < np.inf and 2 * heavy > len(inside) else None


def typical(cells: Cells) -> Floats:
    """Return each cell's mean without its largest value, which may be an outlier, [n]. Infinite if none is finite."""
    finite: Ints = cells["n"] - not_finite(cells)
    rest = (cells["sum"] - cells["value_max"]) / np.maximum(finite - 1, 1)
    mean = np.where(finite > 1, rest, cells["value_max"])
    return np.asarray(np.where(finite > 0, mean, np.inf), np.float64)


def norm_ratio(scaler: ScalerCase, steps: Ints) -> float | None:
    """Return the median gradient norm of samples near these steps over that of all. None if there are too few."""
    samples, norm = scaler.samples, norms(scaler.samples)
    usable = np.isfinite(norm) & (norm > 0) & ~np.isin(samples.step, steps)
    near = usable & (np.abs(samples.step[:, None] - steps).min(1, initial=NEAR + 1) <= NEAR)
    if int(near.sum()) < SAMPLES:
        return None
    return float(np.median(norm[near]) / np.median(norm[usable]))


def norms(samples: GradientSeries) -> Floats:
    """Return the norm of the whole unscaled gradient in each sample, [m]."""
    return gradient_norm(samples.on_grid.sum_squares + samples.off_grid.sum_squares, samples.scale)


def culprits_of(scaler: ScalerCase, steps: Ints) -> CulpritPattern:
    """Return which parameters overflowed at these steps, as far as the ledger knows."""
    wanted = set(steps.tolist())
    known = [each for each in skipped_updates(scaler) if each.first and each.step in wanted]
    first = Counter(each.first for each in known if not each.everywhere).most_common(1)
    name, times = first[0] if first else (None, 0)
    return CulpritPattern(len(known), sum(each.everywhere for each in known), name, times)


def proven_scale(cells: Cells, steps: Ints) -> float | None:
    """Return the largest scale that let such batches through: no skip at it for long, and none at it or below."""
    if len(steps) < 2:
        return None
    cells = cells[cells["first"] > steps[0]]
    scale, skipped = cells["scale_first"], cells["skipped"]
    enough = ENOUGH * float(np.diff(steps).mean())
    for level, run in sorted(_longest_runs(scale, cells["n"], skipped).items(), reverse=True):
        if run >= enough and 0 < level < np.inf and not skipped[scale <= level].any():
            return level
    return None


def _longest_runs(scale: Floats, length: Ints, skipped: Ints) -> dict[float, int]:
    """By scale: the most updates in a row at it without a skip.

    The number of all updates at a scale says less. If the scale grows again before the next outlier, no outlier ever
    tries the smaller one, however many updates it had.
    """
    runs: dict[float, int] = {}
    run, before = 0, None
    for at, updates, skip in zip(scale.tolist(), length.tolist(), skipped.tolist(), strict=True):
        run = updates - skip + (run if at == before else 0)
        runs[at] = max(runs.get(at, 0), run)
        run, before = (0, None) if skip else (run, at)
    return runs
