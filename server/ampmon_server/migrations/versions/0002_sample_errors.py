"""Standard errors of sampled gradients: sums over parameters carry a variance, and all that is packed a version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa
import zstandard
from alembic import op


revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_BEFORE = [
    ("parameters", "<i8"),
    ("looked", "<i8"),
    ("zeros", "<i8"),
    ("inf", "<i8"),
    ("nan", "<i8"),
    ("amax", "<f8"),
    ("sum_squares", "<f8"),
    ("histogram", "<i8", (64,)),
]
_AFTER = [
    _BEFORE[0],
    ("elements", "<i8"),
    *_BEFORE[1:],
    ("variance", "<f8", (3,)),
    ("grain", "<f8"),
]
_VERSION = b"\x01"
_RUN = 16
_SUBNORMAL = slice(16, 26)
"""Bins of fp16's subnormal numbers, 2^-24 to 2^-15; those before are below the grid."""

_KEY = ("run_id", "stream", "first_step", "attempt")


def _sample(totals: list[Any]) -> np.dtype[np.void]:
    return np.dtype(
        [
            ("step", "<i8"),
            ("time", "<i8"),
            ("scale", "<f8"),
            ("on_grid", totals),
            ("off_grid", totals),
        ]
    )


def upgrade() -> None:
    op.add_column("runs", sa.Column("zero_fraction_error", sa.Double(), nullable=True))
    op.add_column("runs", sa.Column("subnormal_fraction_error", sa.Double(), nullable=True))
    sampled = _sampled_streams()
    _rewrite("gradient_blocks", "data", _KEY, lambda _, data: _VERSION + data)
    _rewrite(
        "gradient_totals",
        "data",
        _KEY,
        lambda key, data: _VERSION + _compress(_with_errors(_decompress(data), key[:2] in sampled)),
    )
    _rewrite(
        "streams",
        "newest_sample",
        _KEY[:2],
        lambda key, row: _VERSION + _with_errors(row, key in sampled),
    )


def downgrade() -> None:
    _rewrite("streams", "newest_sample", _KEY[:2], lambda _, row: _without_errors(row[1:]))
    _rewrite(
        "gradient_totals",
        "data",
        _KEY,
        lambda _, data: _compress(_without_errors(_decompress(data[1:]))),
    )
    _rewrite("gradient_blocks", "data", _KEY, lambda _, data: data[1:])
    op.drop_column("runs", "subnormal_fraction_error")
    op.drop_column("runs", "zero_fraction_error")


def _sampled_streams() -> set[tuple[Any, ...]]:
    """The streams that did not look at every element."""
    headers = sa.table("headers", *map(sa.column, ("run_id", "stream", "exact")))
    told = sa.select(headers.c.run_id, headers.c.stream).where(headers.c.exact == 0)
    return {tuple(row) for row in op.get_bind().execute(told)}


def _rewrite(
    name: str,
    column: str,
    key: tuple[str, ...],
    change: Callable[[tuple[Any, ...], bytes], bytes],
) -> None:
    """Change a column of a table, a row at a time, for it may be larger than memory."""
    table = sa.table(name, *map(sa.column, (*key, column)))
    connection = op.get_bind()
    columns = [table.c[each] for each in key]
    keys = connection.execute(sa.select(*columns).where(table.c[column].is_not(None))).all()
    for row in keys:
        this = sa.and_(*(each == value for each, value in zip(columns, row, strict=True)))
        data = connection.execute(sa.select(table.c[column]).where(this)).scalar_one()
        connection.execute(sa.update(table).where(this).values({column: change(tuple(row), data)}))


def _with_errors(data: bytes, sampled: bool) -> bytes:
    """Rows as they are now. What was looked at stood for itself, and neighbours were taken for alike."""
    before = np.frombuffer(data, _sample(_BEFORE))
    after = np.zeros(len(before), _sample(_AFTER))
    for name in ("step", "time", "scale"):
        after[name] = before[name]
    for name in ("on_grid", "off_grid"):
        old, new = before[name], after[name]
        for field in _BEFORE:
            new[field[0]] = old[field[0]]
        new["elements"] = old["looked"]
        if sampled:
            _bound(new)
    return after.tobytes()


def _bound(cells: npt.NDArray[Any]) -> None:
    """The variance of counts p n of n elements in runs that are each all alike: p (1 - p) n^2 / (n / 16)."""
    looked = np.maximum(cells["looked"], 1).astype(np.float64)
    histogram = cells["histogram"]
    small = np.stack(
        [
            cells["zeros"],
            histogram[:, : _SUBNORMAL.start].sum(1),
            histogram[:, _SUBNORMAL].sum(1),
        ],
        axis=-1,
    )
    share = small / looked[:, None]
    cells["variance"] = share * (1 - share) * _RUN * looked[:, None]
    cells["grain"] = np.where(cells["looked"] > 0, _RUN, 0)


def _without_errors(data: bytes) -> bytes:
    after = np.frombuffer(data, _sample(_AFTER))
    before = np.zeros(len(after), _sample(_BEFORE))
    for name in ("step", "time", "scale"):
        before[name] = after[name]
    for name in ("on_grid", "off_grid"):
        for field in _BEFORE:
            before[name][field[0]] = after[name][field[0]]
    return before.tobytes()


def _compress(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(data)


def _decompress(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(data)
