"""Trains with DeepSpeed on a CPU, and prints DeepSpeed's own counts.

Arguments: the ZeRO stage, and the number of steps. DeepSpeed refuses fp16 without CUDA, and compiles its own CPU
collectives. This script replaces both, and for the oldest version also its query of the CPU.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator

import ampmon
from ampmon.integrations.deepspeed import watch


def main(stage: int, steps: int) -> None:
    accelerator = get_accelerator()
    accelerator.is_fp16_supported = lambda: True
    accelerator.supported_dtypes = lambda: [torch.float32, torch.float16]
    accelerator.device_count = lambda: 1  # otherwise it runs the program numactl
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    fp16 = {"enabled": True, "initial_scale_power": 18, "loss_scale_window": 5, "hysteresis": 2}
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "fp16": fp16,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1e-3), config=config
    )
    ampmon.init("deepspeed", f"stage {stage}", mode="offline")
    feed = watch(engine)
    assert watch(engine) is feed
    scales, skipped = [], []
    for step in range(steps):
        before = engine.skipped_steps
        scales.append(float(engine.optimizer.loss_scale))
        inputs = torch.randn(4, 8) * (1e6 if step % 9 in (4, 5, 6) else 1.0)  # infinite in fp16
        engine.backward(engine(inputs.half()).float().square().mean())
        engine.step()
        skipped.append(engine.skipped_steps > before)
    ampmon.finish()
    counted = {"scales": scales, "skipped": skipped, "skipped_steps": engine.skipped_steps}
    print("COUNTED", json.dumps(counted | {"metrics": feed.metrics()}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
