"""`Accelerator(log_with=...)` with ampmon's tracker."""

from __future__ import annotations

import json
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import GradScalerKwargs

from ampmon.integrations.accelerate import AmpmonTracker


torch.manual_seed(0)
tracker = AmpmonTracker("named by the tracker")
accelerator = Accelerator(
    mixed_precision="fp16",
    cpu=True,
    log_with=tracker,
    kwargs_handlers=[GradScalerKwargs(init_scale=2.0**30)],  # as a fix says, and far too much
)
accelerator.init_trackers("a project", {"lr": 0.1})
model = torch.nn.Linear(4, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
skipped = []
for step in range(20):
    with accelerator.autocast():
        loss = model(torch.randn(4, 4)).float().square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    skipped.append(optimizer.step_was_skipped)
    accelerator.log({"loss": loss.item(), "note": "no number"}, step=step)
accelerator.end_training()
with open(f"{sys.argv[1]}/skipped.json", "w") as file:
    json.dump(skipped, file)
