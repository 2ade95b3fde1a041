"""Trains with a trackio run, and prints the rows of its database. Takes the folder."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from pathlib import Path


os.environ["TRACKIO_DIR"] = sys.argv[1]

import torch
import trackio

import ampmon
from ampmon.integrations.trackers import log_metrics


model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = ampmon.GradScaler("cpu", init_scale=1024.0)
trackio.init(project="tests", embed=False)
for update in range(20):
    scaler.scale(model(torch.randn(8, 4)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    log_metrics(trackio, update)
    trackio.log({"loss": update}, step=update)
trackio.finish()
(file,) = Path(sys.argv[1]).rglob("tests.db")
for step, row in sqlite3.connect(file).execute("SELECT step, metrics FROM metrics ORDER BY id"):
    print(json.dumps(json.loads(row) | {"step": step}), flush=True)
