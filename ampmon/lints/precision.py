"""Reads from a loss's graph in which precision it was computed. Reads no value."""

from __future__ import annotations

from typing import Any

import torch


_NODES_MAX = 2000


def computes_in(outputs: Any) -> torch.dtype | None:
    """Return fp16 if any part of a loss was computed in it, else bfloat16 if any part was, else None.

    Searches the nodes nearest to the loss. Nodes that a compiler has merged, and a generator of losses, stay unseen.
    """
    first = outputs[0] if isinstance(outputs, (list, tuple)) and outputs else outputs
    node = getattr(first, "grad_fn", None) if isinstance(first, torch.Tensor) else None
    waiting = [node] if node is not None else []
    met: set[Any] = set(waiting)
    found: set[torch.dtype] = set()
    for node in waiting:  # grows meanwhile
        found.update(part.dtype for part in getattr(node, "_input_metadata", ()))
        if torch.float16 in found:
            return torch.float16
        for function, _ in node.next_functions:
            if function is not None and function not in met and len(met) < _NODES_MAX:
                met.add(function)
                waiting.append(function)
    return torch.bfloat16 if torch.bfloat16 in found else None
