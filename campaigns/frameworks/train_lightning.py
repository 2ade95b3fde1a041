"""Lightning as in its "15 minutes": with `precision=` (`flag`), or a plugin without or with an `own` scaler."""

from __future__ import annotations

import sys

import lightning as L
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch.utils.data import DataLoader, TensorDataset


class Regression(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        )

    def training_step(self, batch, index):
        inputs, target = batch
        loss = (self.net(inputs).float() - target).square().mean()
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


device = "cuda" if torch.cuda.is_available() else "cpu"
how = {
    "flag": {"precision": "16-mixed"},
    "plugin": {"plugins": [MixedPrecision("16-mixed", device)]},
    "own": {
        "plugins": [
            MixedPrecision("16-mixed", device, torch.amp.GradScaler(device, init_scale=2.0**10))
        ]
    },
}[sys.argv[2]]
L.seed_everything(0)
inputs = torch.randn(64, 8)
inputs[40:44] *= 1e5  # more than fp16 holds
data = TensorDataset(inputs, inputs.sum(1, keepdim=True).clamp(-9, 9))
model = Regression()
trainer = L.Trainer(
    max_epochs=2,
    devices=1,
    logger=False,
    log_every_n_steps=4,
    enable_progress_bar=False,
    enable_checkpointing=False,
    gradient_clip_val=1.0,
    default_root_dir=sys.argv[1],
    **how,
)
trainer.fit(model, DataLoader(data, batch_size=4))
torch.save(model.state_dict(), f"{sys.argv[1]}/weights.pt")
