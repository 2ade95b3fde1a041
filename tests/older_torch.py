"""What the oldest torch that is supported lacks, and what tests do there instead."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch


SEES_PRECISION = pytest.mark.skipif(
    torch.__version__ < (2, 5), reason="the graph tells no types before torch 2.5"
)
HAS_FSDP2 = torch.__version__ >= (2, 6)
NO_FSDP2 = "FSDP2 needs a GPU before torch 2.6"
FSDP2 = pytest.mark.skipif(not HAS_FSDP2, reason=NO_FSDP2)
EMULATES = pytest.mark.skipif(
    torch.__version__ < (2, 5),
    reason="the emulated device is written for the interface of a later torch",
)
INTERPRETS = pytest.mark.skipif(
    torch.__version__ < (2, 5), reason="the interpreter of Triton 3.0 fails with a NumPy of today"
)


def named(parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> Any:
    """Parameters with names, as an optimizer takes them from torch 2.6 on; before, a group that has the same."""
    if torch.__version__ >= (2, 6):
        return parameters
    names, tensors = zip(*parameters, strict=True)
    return [{"params": list(tensors), "param_names": list(names)}]
