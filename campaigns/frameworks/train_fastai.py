"""fastai's `Learner.to_fp16()`: a small network with fastai's own Adam, which is not torch's."""

from __future__ import annotations

import sys

import torch
from fastai.basics import DataLoaders, Learner, set_seed
from fastai.callback import fp16  # noqa: F401 - brings Learner.to_fp16
from torch.utils.data import TensorDataset


set_seed(0)
inputs = torch.randn(96, 8)
inputs[40:44] *= 1e5
data = TensorDataset(inputs, inputs.sum(1, keepdim=True).clamp(-9, 9))
dls = DataLoaders.from_dsets(data, data, bs=4, shuffle=False, num_workers=0, device="cpu")
net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
learn = Learner(dls, net, loss_func=torch.nn.MSELoss(), path=sys.argv[1]).to_fp16()
learn.fit(1, lr=1e-3)
torch.save(learn.model.state_dict(), f"{sys.argv[1]}/weights.pt")
