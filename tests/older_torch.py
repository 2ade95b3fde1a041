"""Features that the oldest supported torch lacks, and their replacements in tests."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import pytest
import torch
from packaging.version import Version


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

HAS_TRITON = importlib.util.find_spec("triton") is not None
HAS_TOOLS = HAS_TRITON and Version(version("triton")) >= Version("3.9")
COMPILES = pytest.mark.skipif(
    not HAS_TOOLS,
    reason="without a GPU Triton is asked from 3.9 on, whose interpreter treats NaN as a GPU does",
)


def named(parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> Any:
    """Named parameters for an optimizer, which takes them from torch 2.6 on; before that, an equivalent group."""
    if torch.__version__ >= (2, 6):
        return parameters
    names, tensors = zip(*parameters, strict=True)
    return [{"params": list(tensors), "param_names": list(names)}]
