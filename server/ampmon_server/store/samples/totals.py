"""Sums sampled gradients over parameters, one row for each sampled update, and packs the rows into bytes. Pure.

If only some elements of a parameter were looked at, they stand for all of its elements. So a small parameter that was
looked at completely weighs no more than its size. Parameters are strata, and counts are estimates over all elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ampmon.numerics import sampling_error
from ampmon.numerics.histogram import BINS, ON_GRID_SHARE, SMALL, classify
from ampmon.numerics.sampling_error import Floats, Ints
from ampmon_server.model.series import GradientSeries, Totals
from ampmon_server.store.engine.errors import Damaged
from ampmon_server.store.pages.packing import Stack, compress, decompress


_TOTALS = np.dtype(
    [
        ("parameters", "<i8"),
        ("elements", "<i8"),
        ("looked", "<i8"),
        ("zeros", "<i8"),
        ("inf", "<i8"),
        ("nan", "<i8"),
        ("amax", "<f8"),
        ("sum_squares", "<f8"),
        ("histogram", "<i8", (BINS,)),
        ("variance", "<f8", (SMALL,)),
        ("grain", "<f8"),
    ]
)
_SAMPLE = np.dtype(
    [
        ("step", "<i8"),
        ("time", "<i8"),
        ("scale", "<f8"),
        ("on_grid", _TOTALS),
        ("off_grid", _TOTALS),
    ]
)

Samples = npt.NDArray[Any]
"""Rows of `_SAMPLE`: a structured array [m]."""


def total(stack: Stack, numel: Ints, sample: int | None) -> Samples:
    """Sum each sample over its parameters, separately for those on fp16's grid and the others.

    ``numel`` is the number of elements of each parameter in the header. ``sample`` is how many are looked at in larger
    parameters, or None for all.
    """
    rows = np.zeros(len(stack.steps), _SAMPLE)
    for name in ("step", "time", "scale"):
        rows[name] = stack.columns[name]
    looked = stack.columns["looked"]
    on_grid = stack.columns["on_grid"] >= ON_GRID_SHARE * looked
    elements = sampling_error.elements_of(looked, numel[stack.parameters], sample)
    with np.errstate(over="ignore", invalid="ignore"):  # squares may be infinite or NaN
        for name, chosen in (("on_grid", on_grid), ("off_grid", ~on_grid)):
            _fill(rows[name], stack.columns, elements, chosen)
    return rows


def _fill(
    cells: Samples, statistics: dict[str, Any], elements: Ints, chosen: npt.NDArray[np.bool_]
) -> None:
    cells["parameters"] = np.count_nonzero(chosen, axis=1)
    if not chosen.any():
        return
    looked = statistics["looked"]
    for name, values in (("elements", elements), ("looked", looked)):
        cells[name] = np.where(chosen, values, 0).sum(1)
    # NaN counts as the largest, so that an unknown value does not look small.
    cells["amax"] = np.where(chosen, statistics["amax"], 0.0).max(1, initial=0.0)
    weight: Ints | Floats = chosen.astype(np.int64)
    if (elements > looked).any():
        weight = np.where(chosen, sampling_error.sampling_weight(looked, elements), 0.0)
        _fill_errors(cells, statistics, elements, chosen)
    for name in ("zeros", "inf", "nan"):
        cells[name] = np.rint((statistics[name] * weight).sum(1))
    cells["histogram"] = np.rint(np.einsum("mn,mnb->mb", weight, statistics["histogram"]))
    cells["sum_squares"] = np.where(chosen, statistics["sum_squares"] * weight, 0).sum(1)


def _fill_errors(
    cells: Samples, statistics: dict[str, Any], elements: Ints, chosen: npt.NDArray[np.bool_]
) -> None:
    """Add up the variances of the estimated counts. The coarsest parameter bounds the variance of them all."""
    looked = statistics["looked"]
    classes = classify(
        statistics["histogram"],
        zeros=statistics["zeros"],
        not_finite=statistics["inf"] + statistics["nan"],
    )
    variance = sampling_error.share_variance(
        classes.small,
        statistics["run_squares"],
        looked[..., None],
        elements[..., None],
    )
    weight = np.where(chosen, elements, 0).astype(np.float64)
    cells["variance"] = (variance * weight[..., None] ** 2).sum(1)
    cells["grain"] = (sampling_error.grain(looked, elements) * weight).max(1, initial=0.0)


def samples_to_bytes(samples: Samples) -> bytes:
    return compress(samples.tobytes())


def samples_from_bytes(blocks: Sequence[bytes]) -> Samples:
    """Unpack blocks into one read-only array of rows, in their order. Raises Damaged."""
    try:
        return np.frombuffer(b"".join(map(decompress, blocks)), _SAMPLE)
    except ValueError as error:  # another column
        raise Damaged(f"sums of samples are damaged: {error}") from error


def series(samples: Samples) -> GradientSeries:
    """Convert rows to the series that figures draw."""
    return GradientSeries(
        step=samples["step"].astype(np.int64),
        time=samples["time"].astype(np.int64),
        scale=samples["scale"].astype(np.float64),
        on_grid=_totals(samples["on_grid"]),
        off_grid=_totals(samples["off_grid"]),
    )


def _totals(cells: Samples) -> Totals:
    return Totals(**{name: np.ascontiguousarray(cells[name]) for name in _TOTALS.names or ()})
