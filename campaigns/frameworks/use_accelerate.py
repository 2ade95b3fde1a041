"""`Accelerator(log_with=...)` with ampmon's tracker. Takes the folder; `wandb` also logs to an offline run."""

from __future__ import annotations

import json
import os
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import GradScalerKwargs

from ampmon.integrations.accelerate import AmpmonTracker


torch.manual_seed(0)
tracked = "wandb" in sys.argv
os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": sys.argv[1]}
if tracked:
    import wandb
    from wandb_rows import print_rows
tracker = AmpmonTracker("named by the tracker", tracker=wandb if tracked else None)
accelerator = Accelerator(
    mixed_precision="fp16",
    cpu=True,
    log_with=[tracker, *(["wandb"] if tracked else [])],
    kwargs_handlers=[GradScalerKwargs(init_scale=2.0**30)],  # as a fix says, but far too high
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
if tracked:
    print_rows(sys.argv[1])
