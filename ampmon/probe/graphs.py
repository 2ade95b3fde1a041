"""CUDA graphs and torch.compile: both record what a step does, and must not record the monitor. Knows nothing of it."""

from __future__ import annotations

from functools import cache

import torch


def capturing() -> bool:
    """Whether the current stream is being captured into a CUDA graph. Neither syncs nor waits.

    What is enqueued then becomes part of the graph, an event asked for then breaks the capture, and no value is there
    to be read: whoever measures must stand aside. False where torch was built without CUDA.
    """
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


@cache
def leave_untraced() -> None:
    """Tell torch.compile to call this package as it is, as it does torch's own scaler, instead of tracing into it.

    Where it traced, hooks would be cut into dozens of graphs, and compiled anew whenever what they count changed. The
    compiler's module is loaded for it, as by the first optimizer that is made. Does nothing where torch keeps its list
    of skipped modules elsewhere: tracing is slow then, and no less right.
    """
    try:
        from torch._dynamo import trace_rules

        trace_rules.add(__name__.partition(".")[0])
    except Exception:
        return
