"""Ignite's `create_supervised_trainer` with `amp_mode` and a scaler."""

from __future__ import annotations

import sys

import torch
from ignite.engine import create_supervised_trainer
from torch.utils.data import DataLoader, TensorDataset


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
inputs = torch.randn(96, 8)
inputs[40:44] *= 1e5
data = TensorDataset(inputs, inputs.sum(1, keepdim=True).clamp(-9, 9))
trainer = create_supervised_trainer(
    model,
    torch.optim.SGD(model.parameters(), lr=1e-3),
    torch.nn.MSELoss(),
    amp_mode="amp",
    scaler=torch.amp.GradScaler("cpu"),
)
trainer.run(DataLoader(data, batch_size=4), max_epochs=1)
torch.save(model.state_dict(), f"{sys.argv[1]}/weights.pt")
