"""Trains with an offline W&B run of the script's own, then prints all rows in the run's file.

Takes the folder and how the script logs: `plain` without steps, `stepped` with its own, `rare` at one update in five.
"""

from __future__ import annotations

import os
import sys


os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}

import torch
import wandb
from wandb_rows import print_rows

import ampmon
from ampmon.integrations.trackers import log_metrics


folder, how = sys.argv[1:]
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = ampmon.GradScaler("cpu", init_scale=1024.0, monitor=ampmon.Config(every=1))
run = wandb.init(project="tests", dir=folder)
for update in range(100):
    with torch.autocast("cpu", torch.float16):
        loss = model(torch.randn(8, 4)).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    log_metrics(run)
    if how == "stepped":
        run.log({"loss": update}, step=10 * update)
    elif how == "plain" or update % 5 == 0:
        run.log({"loss": update})
run.finish()
print_rows(folder)
