"""The exponent histogram and the statistics around it: pure functions of numpy arrays, shared by probe and service.

Bin ``i`` of 64 counts the elements with ``2^(i-40) <= |g| < 2^(i-39)``. The first and the last bin also take what lies
beyond them. A power-of-two scale change therefore shifts the histogram by whole bins, and fp16's classes are whole
ranges of bins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ampmon.numerics import packed
from ampmon.numerics.formats import FP16, FloatFormat
from ampmon.numerics.sampling_error import RUN, Floats, Ints
from ampmon.wire import Gradients


BINS = packed.BINS
EXPONENT_MIN = -40
"""Exponent of bin 0."""

ON_GRID_SHARE = 0.99
"""A parameter with a smaller share of its elements on fp16's grid has gradients made or summed in fp32."""

SMALL_CLASSES = ("zero", "below_grid", "subnormal")
"""Classes of the elements that fp16 does not hold in full, by their names in `Classes`."""

SMALL = len(SMALL_CLASSES)


SUBNORMAL_BINS = FP16.exponent_min_normal - EXPONENT_MIN
"""Number of first bins with elements that fp16 does not hold in full: they are below its least normal number."""


@dataclass(frozen=True, slots=True)
class Classes:
    """A partition of elements by how fp16 represents them. Fields are counts of any shape."""

    not_finite: Ints
    zero: Ints
    below_grid: Ints
    subnormal: Ints
    normal: Ints

    @property
    def total(self) -> Ints:
        return self.not_finite + self.zero + self.below_grid + self.subnormal + self.normal

    @property
    def small(self) -> Ints:
        """Counts of the classes in `SMALL_CLASSES`, [..., 3]."""
        return np.stack([getattr(self, name) for name in SMALL_CLASSES], axis=-1)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of n gradients: counts are int64 [n], ``histogram`` int64 [n, 64], the rest float64 [n].

    ``parameters`` int32 [n] are indices into the stream's header. ``run_squares`` int64 [n, 3] is for samples: the sum,
    over the runs, of the square of a run's zero, below-grid and subnormal counts. It is 0 where every element was
    looked at, or where it is not known.
    """

    parameters: npt.NDArray[np.int32]
    looked: Ints
    zeros: Ints
    on_grid: Ints
    inf: Ints
    nan: Ints
    amax: Floats
    sum_squares: Floats
    histogram: Ints
    run_squares: Ints

    def __len__(self) -> int:
        return len(self.looked)

    @property
    def grid_mask(self) -> npt.NDArray[np.bool_]:
        """A mask of the parameters whose gradients fp16 made: at least 99 % of their elements are on its grid."""
        return self.on_grid >= ON_GRID_SHARE * self.looked

    def select(self, mask: npt.NDArray[Any]) -> Statistics:
        """Return the rows that a boolean mask or an index array selects."""
        return Statistics(*(getattr(self, name)[mask] for name in self.__slots__))

    def renumbered(self, parameters: Ints) -> Statistics:
        """Return the same statistics for other parameters, int [n]."""
        return replace(self, parameters=parameters.astype(np.int32))

    def classes(self) -> Classes:
        return classify(self.histogram, zeros=self.zeros, not_finite=self.inf + self.nan)

    @classmethod
    def nothing(cls, parameters: Sequence[int]) -> Statistics:
        """Return statistics of no elements, with a row for each of ``parameters``."""
        n = len(parameters)
        zeros = {name: np.zeros(n, np.int64) for name in packed.COUNTS}
        return cls(
            parameters=np.array(parameters, np.int32),
            **zeros,
            amax=np.zeros(n),
            sum_squares=np.zeros(n),
            histogram=np.zeros((n, BINS), np.int64),
            run_squares=no_runs(n),
        )

    @classmethod
    def joined(cls, parts: Sequence[Statistics]) -> Statistics:
        """Return the rows of all ``parts``, of which there must be at least one."""
        return cls(
            *(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__)
        )

    @classmethod
    def added(cls, parts: Sequence[Statistics]) -> Statistics:
        """Return statistics of all elements in ``parts``, of which there must be at least one.

        There is a row for each parameter, in the order in which parameters first occur.
        """
        joined = cls.joined(parts)
        found, first, row = np.unique(joined.parameters, return_index=True, return_inverse=True)
        # argsort twice gives ranks: here, the order in which the parameters first occur.
        place = np.argsort(np.argsort(first))[row]
        added = cls.nothing(found[np.argsort(first)].tolist())
        with np.errstate(over="ignore", invalid="ignore"):  # squares may be infinite or NaN
            for name in (*packed.COUNTS, "sum_squares", "histogram", "run_squares"):
                np.add.at(getattr(added, name), place, getattr(joined, name))
            np.maximum.at(added.amax, place, joined.amax)
        # If one part's runs are unknown, as when it was looked at in full, those of the sum are unknown too.
        row, column = np.nonzero((joined.run_squares == 0) & (joined.classes().small > 0))
        added.run_squares[place[row], column] = 0
        return added

    def divided(self, by: Ints) -> Statistics:
        """Return the averages over ``by`` [n] tensors, if these statistics are the sums. amax stays the largest.

        Counts are rounded so that the classes of the elements still add up.
        """
        counts = np.concatenate(
            [*(each[:, None] for each in (self.zeros, self.inf, self.nan)), self.histogram], axis=1
        )
        upto = np.rint(np.cumsum(counts, axis=1) / by[:, None]).astype(np.int64)
        counts = np.diff(upto, axis=1, prepend=0)
        zeros, inf, nan, histogram = counts[:, 0], counts[:, 1], counts[:, 2], counts[:, 3:]
        small = classify(histogram, zeros, inf + nan).small
        squares = np.rint(self.run_squares / by[:, None]).astype(np.int64)
        return Statistics(
            parameters=self.parameters,
            looked=upto[:, -1],
            zeros=zeros,
            on_grid=np.minimum(np.rint(self.on_grid / by).astype(np.int64), upto[:, -1]),
            inf=inf,
            nan=nan,
            amax=self.amax,
            sum_squares=self.sum_squares / by,
            histogram=histogram,
            # Within what `check` allows, which rounding may leave.
            run_squares=np.where(squares > 0, np.clip(squares, small, RUN * small), 0),
        )

    def instead(self, of: Statistics) -> Statistics:
        """Return ``of`` with the rows of its parameters replaced by these, where both are finite.

        ``sum_squares``, and so the norm, stays that of ``of``.
        """
        found = {parameter: row for row, parameter in enumerate(self.parameters.tolist())}
        rows = np.array([found.get(each, -1) for each in of.parameters.tolist()], np.int64)
        finite = self.inf + self.nan == 0
        # A row of -1 reads the last one, and its own condition leaves it out.
        there = np.flatnonzero((rows >= 0) & finite[rows] & (of.inf + of.nan == 0))
        columns = {name: getattr(of, name).copy() for name in of.__slots__}
        for name, column in columns.items():
            if name != "sum_squares":
                column[there] = getattr(self, name)[rows[there]]
        return Statistics(**columns)

    def to_wire(self) -> Gradients:
        return Gradients(
            parameters=self.parameters.astype("<i4").tobytes(),
            **{name: getattr(self, name).astype("<i8").tobytes() for name in packed.COUNTS},
            amax=self.amax.astype("<f8").tobytes(),
            sum_squares=self.sum_squares.astype("<f8").tobytes(),
            histogram=self.histogram.astype("<i8").tobytes(),
            run_squares=self.run_squares.astype("<i8").tobytes() if self.run_squares.any() else b"",
        )

    @classmethod
    def from_wire(cls, wire: Gradients) -> Statistics:
        """Return the statistics in a record. Raises ValueError, naming the field, for impossible lengths or counts."""
        return cls.of_alike([wire])[0]

    @classmethod
    def of_alike(cls, wires: Sequence[Gradients]) -> list[Statistics]:
        """Return the statistics of m records of the same parameters. Several times faster than one by one.

        Raises ValueError as `from_wire` does, and if their parameters differ.
        """
        parameters = wires[0].parameters
        if len(parameters) % 4:
            raise ValueError(
                f"gradients.parameters: {len(parameters)} bytes are not a whole number of 4-byte elements"
            )
        if any(wire.parameters != parameters for wire in wires):
            raise ValueError("gradients.parameters: they differ")
        n = len(parameters) // 4
        no_squares = bytes(8 * n * SMALL)
        together = cls(
            parameters=np.frombuffer(parameters, "<i4"),
            **{
                name: _arrays(name, [getattr(wire, name) for wire in wires], "<i8", (n,))
                for name in packed.COUNTS
            },
            amax=_arrays("amax", [wire.amax for wire in wires], "<f8", (n,)),
            sum_squares=_arrays("sum_squares", [wire.sum_squares for wire in wires], "<f8", (n,)),
            histogram=_arrays("histogram", [wire.histogram for wire in wires], "<i8", (n, BINS)),
            run_squares=_arrays(
                "run_squares", [wire.run_squares or no_squares for wire in wires], "<i8", (n, SMALL)
            ),
        )
        together.check()
        _, *names = cls.__slots__
        return [
            cls(together.parameters, *(getattr(together, name)[place] for name in names))
            for place in range(len(wires))
        ]

    def check(self) -> None:
        """Raise ValueError, naming the field, for impossible counts."""
        if (self.parameters < 0).any() or len(np.unique(self.parameters)) != len(self.parameters):
            raise ValueError("gradients.parameters: indices must be distinct and not negative")
        for name in (*packed.COUNTS, "histogram"):
            if (getattr(self, name) < 0).any():
                raise ValueError(f"gradients.{name}: a count cannot be negative")
        classes = self.classes()
        if (classes.total != self.looked).any():
            raise ValueError("gradients.looked: the classes of the elements do not add up to it")
        if (self.on_grid > self.looked).any():
            raise ValueError("gradients.on_grid: more elements on the grid than were sampled")
        small = classes.small
        possible = (small <= self.run_squares) & (-(-self.run_squares // RUN) <= small)
        if not (possible | (self.run_squares == 0)).all():
            raise ValueError("gradients.run_squares: impossible for runs of 16 elements")


def no_runs(n: int) -> Ints:
    """Return the run squares of n gradients without any: every element was looked at, or they are unknown."""
    return np.zeros((n, SMALL), np.int64)


def _arrays(
    name: str, records: Sequence[bytes], dtype: str, shape: tuple[int, ...]
) -> npt.NDArray[Any]:
    """Decode one field of m records, of 8-byte elements, into an array [m, *shape]."""
    length = math.prod(shape)
    for data in records:
        if len(data) != 8 * length:
            raise ValueError(
                f"gradients.{name}: {len(data)} bytes are not {length} 8-byte elements"
            )
    return np.frombuffer(b"".join(records), dtype).reshape(len(records), *shape)


def classify(histogram: Ints, zeros: Ints, not_finite: Ints) -> Classes:
    """Return the classes of elements counted by histograms [..., 64]. ``zeros`` and ``not_finite`` are [...]."""
    grid = FP16.exponent_min_subnormal - EXPONENT_MIN
    return Classes(
        not_finite=not_finite,
        zero=zeros,
        below_grid=histogram[..., :grid].sum(-1),
        subnormal=histogram[..., grid:SUBNORMAL_BINS].sum(-1),
        normal=histogram[..., SUBNORMAL_BINS:].sum(-1),
    )


def headroom_bits(amax: Floats, into: FloatFormat = FP16) -> Floats:
    """Return the bits between the largest magnitude and the format's largest number: ``log2(max / amax)``.

    NaN where amax is NaN, -inf where it is infinite, +inf where it is zero.
    """
    with np.errstate(divide="ignore"):
        return np.asarray(np.log2(into.max) - np.log2(amax), dtype=np.float64)


def gradient_norm(sum_squares: Floats, scale: Floats) -> Floats:
    """Return the unscaled 2-norm from the sum of squares of scaled elements. Add up shards before, but not replicas."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.asarray(np.sqrt(sum_squares) / scale, dtype=np.float64)
