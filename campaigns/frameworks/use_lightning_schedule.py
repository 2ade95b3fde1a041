"""Lightning with a per-step schedule, as in its documentation, and two overflowing batches. `fix` applies the fix."""

from __future__ import annotations

import sys
from pathlib import Path

import lightning as L
import torch
from torch.utils.data import DataLoader


class Regression(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 4)

    def training_step(self, batch, index):
        return self.net(batch).pow(2).mean()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.125)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


folder = Path(sys.argv[1])
if sys.argv[2:]:
    # Put the finding's code into the module, as its first line says.
    made: dict = {}
    lines = (folder.parent / "fix.py").read_text().splitlines()
    exec("\n    ".join(["class Mended(Regression):", *lines]), {"Regression": Regression}, made)
    Regression = made["Mended"]
torch.manual_seed(0)
batches = torch.randn(8, 2, 4)
batches[[0, 3]] *= 1e5  # more than fp16 holds
model = Regression()
trainer = L.Trainer(
    accelerator="cpu",
    precision="16-mixed",
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(model, DataLoader(batches, batch_size=None))
(rates,) = (torch.tensor(group["lr"]) for group in model.optimizers().param_groups)
torch.save({"lr": rates}, folder / "weights.pt")
