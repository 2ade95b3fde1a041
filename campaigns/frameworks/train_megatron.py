"""Megatron-core's own `DynamicGradScaler`, told which of its updates overflow. Prints the scales that it had.

The argument is the folder that holds `megatron/core/optimizer/grad_scaler.py`, which is all that is loaded of it. It
makes its scales on CUDA: here, and in this test only, `torch.tensor` makes them on the CPU.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch

import ampmon
from ampmon.integrations.megatron import watch


def main(folder: str) -> None:
    path = Path(folder, "megatron", "core", "optimizer", "grad_scaler.py")
    spec = importlib.util.spec_from_file_location("grad_scaler", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    make = torch.tensor
    with mock.patch.object(torch, "tensor", lambda *a, **k: make(*a, **{**k, "device": "cpu"})):
        scaler = module.DynamicGradScaler(2.0**32, 1.0, 2.0, 0.5, growth_interval=8, hysteresis=2)
    ampmon.init("megatron", "overflows", mode="offline")
    optimizer = SimpleNamespace(grad_scaler=scaler)
    (feed,) = watch(optimizer)
    assert watch(optimizer) == [feed]
    overflows = [update < 20 or update % 13 in (0, 1) for update in range(100)]
    scales = []
    for overflow in overflows:
        scales.append(scaler.scale.item())
        scaler.update(overflow)
    ampmon.finish()
    print("COUNTED", json.dumps({"scales": scales, "skipped": overflows}))


if __name__ == "__main__":
    main(sys.argv[1])
