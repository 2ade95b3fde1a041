"""nnU-Net's own trainer on drawn discs: planned, preprocessed, and trained for an epoch in 2d."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import numpy as np
import torch
from data import discs


def main(folder: Path) -> None:
    discs(folder)
    from nnunetv2.run.run_training import get_trainer_from_args

    os.environ["nnUNet_n_proc_DA"] = "0"  # noqa: SIM112 - augment in this process, which has the seed
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    trainer = get_trainer_from_args("1", "2d", "all", device=torch.device("cpu"))
    trainer.num_epochs = trainer.num_val_iterations_per_epoch = 1
    trainer.num_iterations_per_epoch = 12
    trainer.run_training()
    torch.save(trainer.network.state_dict(), folder / "weights.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
