"""MMEngine's `Runner` with its `AmpOptimWrapper`."""

from __future__ import annotations

import sys

import torch
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch.utils.data import Dataset


class Regression(BaseModel):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        )

    def forward(self, inputs, target, mode):
        return {"loss": (self.net(inputs).float() - target).square().mean()}


class Points(Dataset):
    def __init__(self) -> None:
        self.inputs = torch.randn(96, 8, generator=torch.Generator().manual_seed(0))
        self.inputs[40:44] *= 1e5

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int):
        return self.inputs[index], self.inputs[index].sum(0, keepdim=True).clamp(-9, 9)


torch.manual_seed(0)
runner = Runner(
    model=Regression(),
    work_dir=sys.argv[1],
    train_dataloader={
        "batch_size": 4,
        "dataset": Points(),
        "collate_fn": {"type": "default_collate"},
        "sampler": {"type": "DefaultSampler", "shuffle": False},
    },
    train_cfg={"by_epoch": True, "max_epochs": 1},
    optim_wrapper={"type": "AmpOptimWrapper", "optimizer": {"type": "SGD", "lr": 1e-3}},
    randomness={"seed": 0},
)
runner.train()
torch.save(runner.model.state_dict(), f"{sys.argv[1]}/weights.pt")
