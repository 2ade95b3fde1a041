"""Lightning with ampmon's callback or logger. Takes the folder, and one word: how ampmon is used.

The words are `callback`, `resume`, `logger`, `fabric`, `wandb` and `again`. With `wandb` the Trainer also logs to an
offline W&B run, whose rows the script prints. With `again` two trainings raise before the last, as in a search for
hyperparameters.
"""

from __future__ import annotations

import contextlib
import os
import sys

import lightning as L
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch.utils.data import DataLoader, TensorDataset

from ampmon.integrations.lightning import AmpmonCallback, AmpmonLogger


class Line(L.LightningModule):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.head = torch.nn.Linear(width, 1)

    def training_step(self, batch, index):
        loss = self.head(batch[0]).float().square().mean()
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.125)


def fabric() -> None:
    fabric = L.Fabric(accelerator="cpu", precision="16-mixed", loggers=AmpmonLogger("of fabric"))
    model = torch.nn.Linear(4, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(6):
        loss = model(torch.randn(4, 4)).float().square().mean()
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        fabric.log("loss", loss, step)


def trainer(folder: str, how: str) -> None:
    logger = AmpmonLogger("of the logger") if how == "logger" else False  # before the scaler
    # With a logger, the plugin gets a scaler of its own, as a fix says.
    scaler = torch.amp.GradScaler("cpu", init_scale=1024) if how == "logger" else None
    callback = AmpmonCallback("of the callback")
    if how == "wandb":
        os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
        from lightning.pytorch.loggers import WandbLogger

        logger = WandbLogger(project="tests", save_dir=folder)
        callback = AmpmonCallback("of the callback", tracker=logger.experiment)
    trainer = L.Trainer(
        max_epochs=2 if how == "resume" else 1,
        accelerator="cpu",
        plugins=MixedPrecision("16-mixed", "cpu", scaler),
        callbacks=[] if how == "logger" else [callback],
        logger=logger,
        log_every_n_steps=2,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    path = f"{folder}/last.ckpt"
    loader = DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=4)
    trainer.fit(Line(), loader, ckpt_path=path if how == "resume" else None)
    trainer.save_checkpoint(path)
    if how == "wandb":
        from wandb_rows import print_rows

        logger.experiment.finish()
        print_rows(folder)


class Plain(torch.optim.Optimizer):
    """An optimizer without a learning rate."""

    @torch.no_grad()
    def step(self, closure=None):
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad.sign(), alpha=0.01)
        return loss


class Failing(Line):
    def configure_optimizers(self):
        return Plain(self.parameters(), {})

    def on_train_batch_end(self, outputs, batch, index):
        raise RuntimeError("out of memory")


L.seed_everything(0)
if sys.argv[2] == "again":
    Lasting, Line = Line, Failing
    for how in ("logger", "callback"):
        with contextlib.suppress(RuntimeError):
            trainer(sys.argv[1], how)
    Line, sys.argv[2] = Lasting, "callback"
fabric() if sys.argv[2] == "fabric" else trainer(sys.argv[1], sys.argv[2])
