"""Converts NaN and infinities, which databases and JSON cannot all hold, to a null and its kind. Pure."""

from __future__ import annotations

import base64
import math
from datetime import date
from typing import Any

import msgspec
import orjson


KINDS = (None, "nan", "inf", "-inf")
"""The kinds of a null number. The database stores the index, so append only."""

decode_object = msgspec.json.Decoder(dict[str, Any]).decode
decode_texts = msgspec.json.Decoder(list[str]).decode
"""Decode stored JSON. They raise DecodeError, also for JSON of another kind."""

_VALUES = (None, math.nan, math.inf, -math.inf)
INTEGER_MAX = 2**53 - 1
# Clients choose how deep details nest, and orjson refuses more than 254 levels.
_DEPTH_MAX = 32


def split(value: float) -> tuple[float | None, int]:
    """Split a float into the stored number and kind: itself and 0, or null and the index of its kind.

    Negative zero becomes positive zero, because SQLite has no negative zero.
    """
    if math.isfinite(value):
        return value + 0.0, 0
    return None, 1 if math.isnan(value) else 2 if value > 0 else 3


def split_named(value: float) -> tuple[float | None, str | None]:
    """Split a float into a number for JSON and the name of its kind: itself and null, or null and the name."""
    number, kind = split(value)
    return number, KINDS[kind]


def fields_of(name: str, value: float | None) -> dict[str, Any]:
    """A float as two fields for JSON: ``name`` is the number, and ``name_kind`` its kind. Both are null for None."""
    number, kind = (None, None) if value is None else split_named(float(value))
    return {name: number, f"{name}_kind": kind}


def join(value: float | None, kind: int) -> float | None:
    """Return the float that `split` took apart, or None if there was no number."""
    return _VALUES[kind] if value is None else value


def split_pair(first: float, second: float) -> tuple[float | None, float | None, int]:
    """Split two floats and pack both kinds into one number, two bits each, the first in the lower bits."""
    (first_value, first_kind), (second_value, second_kind) = split(first), split(second)
    return first_value, second_value, first_kind | second_kind << 2


def kinds_of_pair(kinds: int) -> tuple[int, int]:
    return kinds & 3, kinds >> 2


def json_text(value: Any) -> str:
    """Return any value of a record's free-form fields as JSON that a browser can parse. Never fails.

    In a mapping, a number that is not finite becomes null with ``<key>_kind`` beside it; in a list, the name of its
    kind. Bytes, dates and integers beyond `INTEGER_MAX` become text.
    """
    return orjson.dumps(_plain(value, 0)).decode()


def _plain(value: Any, depth: int) -> Any:
    if depth > _DEPTH_MAX:
        return "(nested too deep)"
    if isinstance(value, dict):
        return _plain_mapping(value, depth)
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth + 1) for item in value]
    return _plain_leaf(value)


def _plain_mapping(value: dict[Any, Any], depth: int) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, float) and not math.isfinite(item):
            plain[str(key)] = None
            plain[f"{key}_kind"] = KINDS[split(item)[1]]
        else:
            plain[str(key)] = _plain(item, depth + 1)
    return plain


def _plain_leaf(value: Any) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return value if abs(value) <= INTEGER_MAX else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else KINDS[split(value)[1]]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    if isinstance(value, msgspec.msgpack.Ext):
        return base64.b64encode(value.data).decode()
    return value.isoformat() if isinstance(value, date) else str(value)
