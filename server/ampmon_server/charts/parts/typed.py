"""Typed arrays in Plotly's JSON: base64 of little-endian bytes, which keeps NaN and is smaller than digits."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import numpy as np
import numpy.typing as npt


def typed(values: npt.NDArray[Any]) -> dict[str, str]:
    """Encode ``values`` [n] or [rows, n] as a typed array of the smallest type that holds them exactly.

    Whole numbers that do not fit in 32 bits become float64, because the browser has no 64-bit integers.
    """
    dtype = _dtype(values)
    spec = {
        "dtype": dtype,
        "bdata": b64encode(np.ascontiguousarray(values, "<" + dtype).tobytes()).decode(),
    }
    if values.ndim > 1:
        spec["shape"] = ",".join(map(str, values.shape))
    return spec


def _dtype(values: npt.NDArray[Any]) -> str:
    if values.dtype.kind == "f":
        return "f4" if values.dtype.itemsize <= 4 else "f8"
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    for dtype in ("i1", "i2", "i4"):
        limits = np.iinfo(dtype)
        if limits.min <= low and high <= limits.max:
            return dtype
    return "f8"
