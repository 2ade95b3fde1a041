"""nnU-Net's own trainer on discs that are drawn here: planned, preprocessed, and trained for an epoch in 2d."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image


def draw(folder: Path) -> None:
    for kind in ("imagesTr", "labelsTr"):
        (folder / kind).mkdir(parents=True)
    generator = np.random.default_rng(0)
    rows, columns = np.mgrid[:32, :32]
    for number in range(6):
        row, column = generator.integers(8, 24, 2)
        disc = ((rows - row) ** 2 + (columns - column) ** 2 < 36).astype(np.uint8)
        image = (disc * 128 + generator.integers(0, 64, disc.shape)).astype(np.uint8)
        if number == 3:
            image = (
                image.astype(np.uint16) * 255
            )  # beyond what the first convolution can take in fp16
        Image.fromarray(image).save(folder / "imagesTr" / f"disc_{number:03}_0000.png")
        Image.fromarray(disc).save(folder / "labelsTr" / f"disc_{number:03}.png")
    described = {
        "channel_names": {"0": "noNorm"},
        "labels": {"background": 0, "disc": 1},
        "numTraining": 6,
        "file_ending": ".png",
    }
    (folder / "dataset.json").write_text(json.dumps(described))


def shrink(plans: Path) -> None:
    """Edit the plans, as its documentation does: two images a batch, and few channels."""
    planned = json.loads(plans.read_text())
    made = planned["configurations"]["2d"]
    made["batch_size"] = 2
    kwargs = made["architecture"]["arch_kwargs"]
    kwargs["features_per_stage"] = [4 for _ in kwargs["features_per_stage"]]
    plans.write_text(json.dumps(planned))


def main(folder: Path) -> None:
    draw(folder / "raw" / "Dataset001_Discs")
    from nnunetv2.experiment_planning import plan_and_preprocess_api as planning
    from nnunetv2.run.run_training import get_trainer_from_args

    planning.extract_fingerprints([1], num_processes=1)
    planning.plan_experiments([1])
    shrink(folder / "preprocessed" / "Dataset001_Discs" / "nnUNetPlans.json")
    planning.preprocess([1], configurations=("2d",), num_processes=(1,))
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
