"""Finds the call that created a scaler, so that a fix can edit the script's own call. Reads no tensor."""

from __future__ import annotations

import dataclasses
import json
import linecache
import re
import sys
from collections.abc import Mapping
from itertools import islice
from types import FrameType
from typing import Any

import torch

from ampmon.config import Config
from ampmon.system import signals
from ampmon.training.call import RULES, STOCK, Call, arguments


LENGTH_MAX = 256
"""The most characters of one argument. Longer ones are left out."""
_NAMES = re.compile(r"[\w.,\[\] ]+")


def class_name(scaler: Any) -> str:
    """The class that the scaler was created as, not the subclass that watches it."""
    cls = type(scaler).__dict__.get("_ampmon_base", type(scaler))
    return f"{cls.__module__}.{cls.__qualname__}"


def call_of(scaler: Any, *, watched: bool, **given: Any) -> Call | None:
    """The call that created the scaler, or None on failure. Reads torch's arguments from it; ``given`` are ours."""
    try:
        return Call(class_name(scaler), _arguments(scaler, given), watched)
    except Exception as error:
        signals.let_through(error)
        return None


def _arguments(scaler: Any, given: dict[str, Any]) -> dict[str, str]:
    device = str(getattr(scaler, "_device", "cuda"))
    codes = {"device": json.dumps(device)}
    codes |= {name: _number(getattr(scaler, f"_{name}", None)) for name in RULES}
    # torch itself disables a CUDA scaler if there is no CUDA.
    asked = scaler.is_enabled() or (device == "cuda" and not torch.cuda.is_available())
    codes["enabled"] = str(given.pop("enabled", asked))
    group = scaler.__dict__.get("process_group")
    written = _written()
    if group is not None and group is not torch.distributed.group.WORLD:
        codes["process_group"] = written.get("process_group", "process_group")
    codes |= {
        name: _code(name, value, written) for name, value in given.items() if value is not None
    }
    return {
        name: code
        for name, code in codes.items()
        if code and code != STOCK.get(name) and code.isprintable() and len(code) <= LENGTH_MAX
    }


def _number(value: Any) -> str:
    return repr(value).removesuffix(".0") if isinstance(value, (int, float)) else ""


def _code(name: str, value: Any, written: Mapping[str, str]) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Config):
        default = Config()
        settings = [
            f"{field.name}={getattr(value, field.name)!r}"
            for field in dataclasses.fields(value)
            if getattr(value, field.name) != getattr(default, field.name)
        ]
        return f"ampmon.Config({', '.join(settings)})"
    code = written.get(name, "")  # code other than a name may hold a secret
    return code if _NAMES.fullmatch(code) else name


def _written() -> Mapping[str, str]:
    """The keyword arguments of the script's call as its source has them. Empty if that is unavailable.

    Does not read the frame's variables: before Python 3.13 that keeps them alive until their function returns.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("ampmon."):
        frame = frame.f_back
    if frame is None or sys.version_info < (3, 11):
        return {}
    instructions = frame.f_code.co_positions()
    # There is one entry for each code unit of two bytes.
    first, last, start, stop = next(islice(instructions, frame.f_lasti // 2, None))
    lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)[(first or 1) - 1 : last]
    # Columns are bytes of UTF-8.
    source = "".join(lines).encode()[start:]
    if last is not None and lines:
        source = source[: len(source) - len(lines[-1].encode()) + (stop or 0)]
    try:
        # In brackets, because a line may end before the call's own ones.
        written = arguments(f"({source.decode()})")[1]
        return {name: " ".join(code.split()) for name, code in written.items()}
    except (SyntaxError, ValueError):
        return {}
