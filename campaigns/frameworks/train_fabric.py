"""Lightning Fabric, as its documentation converts a plain PyTorch loop."""

from __future__ import annotations

import sys

import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, TensorDataset


fabric = Fabric(devices=1, precision="16-mixed")
fabric.launch()
fabric.seed_everything(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=1e-3))
inputs = torch.randn(96, 8)
inputs[40:44] *= 1e5  # more than fp16 holds
data = TensorDataset(inputs, inputs.sum(1, keepdim=True).clamp(-9, 9))
for batch, target in fabric.setup_dataloaders(DataLoader(data, batch_size=4)):
    optimizer.zero_grad()
    loss = (model(batch).float() - target).square().mean()
    fabric.backward(loss)
    optimizer.step()
torch.save(model.state_dict(), f"{sys.argv[1]}/weights.pt")
