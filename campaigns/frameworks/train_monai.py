"""MONAI's `SupervisedTrainer` with `amp=True`: a small UNet on random volumes."""

from __future__ import annotations

import sys

import torch
from monai.engines import SupervisedTrainer
from monai.losses import DiceLoss
from monai.networks.nets import UNet
from monai.utils import set_determinism


set_determinism(0)
model = UNet(spatial_dims=2, in_channels=1, out_channels=1, channels=(4, 8), strides=(2,))
volumes = [
    {"image": torch.randn(2, 1, 16, 16), "label": torch.ones(2, 1, 16, 16)} for _ in range(12)
]
volumes[5]["image"] *= 1e5
trainer = SupervisedTrainer(
    device=torch.device("cpu"),
    max_epochs=1,
    train_data_loader=volumes,
    epoch_length=len(volumes),
    network=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=1e-2),
    loss_function=DiceLoss(sigmoid=True),
    amp=True,
)
trainer.run()
torch.save(model.state_dict(), f"{sys.argv[1]}/weights.pt")
