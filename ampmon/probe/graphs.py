"""CUDA graphs and torch.compile: both record what a step does, and must not record the monitor. Knows nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import torch


def capturing() -> bool:
    """Whether the current stream is being captured into a graph. Neither syncs nor waits.

    What is enqueued then becomes part of the graph, an event asked for then breaks the capture, and no value is there
    to be read: whoever measures must stand aside. False where no device can capture.
    """
    for each in _capturing_modules():  # noqa: SIM110 - it is asked in every update, and any() takes twice as long
        if each.is_initialized() and each.is_current_stream_capturing():
            return True
    return False


@cache
def _capturing_modules() -> tuple[Any, ...]:
    """torch.cuda, and the module of another accelerator that can capture."""
    present = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    if present is None or present.type == "cuda":
        return (torch.cuda,)
    module = torch.get_device_module(present)
    asked = ("is_initialized", "is_current_stream_capturing")
    return (torch.cuda, module) if all(hasattr(module, each) for each in asked) else (torch.cuda,)


@cache
def leave_untraced() -> None:
    """Have torch.compile call this package as it is, as it does torch's own scaler, instead of tracing into it.

    Where it traced, hooks would be cut into dozens of graphs, and compiled anew whenever what they count changed. The
    compiler's module is loaded for it, as by the first optimizer that is made. Does nothing where torch keeps its list
    of skipped modules elsewhere: tracing is slow then, and no less right.
    """
    try:
        from torch._dynamo import trace_rules

        trace_rules.add(__name__.partition(".")[0])
    except Exception:
        return


def traceable(function: Callable[..., None]) -> Any:
    """The function as one that torch.compile does trace into, although `leave_untraced` keeps it from this package.

    For what torch calls in the midst of a model: left untraced, it would cut the graph there for good. Traced, it is
    nothing, if all that it does is behind ``if not torch.compiler.is_compiling()``.
    """
    code = function.__code__.replace(co_filename="<ampmon, traceable>")
    return FunctionType(code, function.__globals__, function.__name__)
