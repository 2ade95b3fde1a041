"""Keeps the monitor out of the steps that CUDA graphs and torch.compile record."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import torch


def capturing() -> bool:
    """Return whether the current stream is being captured into a graph. Neither syncs nor waits.

    During a capture nothing can be measured: enqueued work becomes part of the graph, an event query breaks the
    capture, and there are no values to read. False if no device can capture.
    """
    for each in _capturing_modules():  # noqa: SIM110 - it is asked in every update, and any() takes twice as long
        if each.is_initialized() and each.is_current_stream_capturing():
            return True
    return False


@cache
def _capturing_modules() -> tuple[Any, ...]:
    """torch.cuda, and the module of another accelerator if that can capture."""
    present = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    if present is None or present.type == "cuda":
        return (torch.cuda,)
    module = torch.get_device_module(present)
    asked = ("is_initialized", "is_current_stream_capturing")
    return (torch.cuda, module) if all(hasattr(module, each) for each in asked) else (torch.cuda,)


@cache
def leave_untraced() -> None:
    """Make torch.compile call this package without tracing into it, as it does with torch's own scaler.

    Traced hooks would be cut into dozens of graphs, and recompiled whenever their counts change. This imports the
    compiler's module, as the first optimizer does too. It has no effect if torch keeps its list of skipped modules
    elsewhere: tracing is then slow but still correct.
    """
    try:
        from torch._dynamo import trace_rules

        trace_rules.add(__name__.partition(".")[0])
    except Exception:
        return


def traceable(function: Callable[..., None]) -> Any:
    """Return the function as one that torch.compile does trace into, despite `leave_untraced`.

    It is for functions that torch calls inside a model: untraced, they would break the graph there. Traced, they cost
    nothing if all their code is behind ``if not torch.compiler.is_compiling()``.
    """
    code = function.__code__.replace(co_filename="<ampmon, traceable>")
    return FunctionType(code, function.__globals__, function.__name__)
