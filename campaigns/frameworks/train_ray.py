"""A Ray task that trains in fp16. With "hook" its worker calls `ampmon.auto` at the start, and the task `finish`."""

from __future__ import annotations

import sys

import ray
import torch

import ampmon


@ray.remote
def train(watched: bool) -> tuple[dict[str, torch.Tensor], int]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    steps: list[int] = []
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    scaler = torch.amp.GradScaler("cpu")
    for update in range(24):
        inputs = torch.randn(16, 8) * (1e5 if update == 9 else 1.0)
        with torch.autocast("cpu", torch.float16):
            outputs = model(inputs)
        scaler.scale((outputs.float() - inputs.sum(1, keepdim=True)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    if watched:
        ampmon.finish()  # Ray kills its workers
    return model.state_dict(), len(steps)


hook = {"worker_process_setup_hook": "ampmon.auto"} if "hook" in sys.argv else {}
ray.init(num_cpus=1, include_dashboard=False, runtime_env=hook)
weights, steps = ray.get(train.remote(bool(hook)))
torch.save({**weights, "steps": torch.tensor(steps)}, f"{sys.argv[1]}/weights.pt")
