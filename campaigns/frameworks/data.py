"""Data and small models for the frameworks' own scripts. `python data.py NAME FOLDER` makes one of them."""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path

import numpy as np
from PIL import Image


SHORT = """
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer


class Short(nnUNetTrainer):
    def initialize(self):
        super().initialize()
        self.num_epochs = self.num_val_iterations_per_epoch = 1
        self.num_iterations_per_epoch = 12
"""
"""A custom trainer, as in nnU-Net's documentation: its own have at least 250 iterations."""


def cifar(folder: Path) -> None:
    """CIFAR-10 in torchvision's layout: 40 training images and 8 test images, all noise."""
    draw = np.random.default_rng(0)
    batches = folder / "data" / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        images = draw.integers(0, 256, (8, 3 * 32 * 32), np.uint8)
        labels = draw.integers(0, 10, 8).tolist()
        (batches / name).write_bytes(pickle.dumps({"data": images, "labels": labels}))
    (batches / "batches.meta").write_bytes(pickle.dumps({"label_names": [*"0123456789"]}))


def squares(folder: Path) -> None:
    """16 images with a white square each, for a detector."""
    import yaml
    from ultralytics import settings

    draw = np.random.default_rng(0)
    for kind in ("images", "labels"):
        (folder / "squares" / kind).mkdir(parents=True)
    for number in range(16):
        pixels = np.zeros((32, 32, 3), np.uint8)
        left, top = draw.integers(0, 16, 2)
        pixels[top : top + 16, left : left + 16] = 255
        Image.fromarray(pixels).save(folder / "squares" / "images" / f"{number}.png")
        label = f"0 {(left + 8) / 32} {(top + 8) / 32} 0.5 0.5\n"
        (folder / "squares" / "labels" / f"{number}.txt").write_text(label)
    data = {
        "path": str(folder / "squares"),
        "train": "images",
        "val": "images",
        "names": ["square"],
    }
    (folder / "squares.yaml").write_text(yaml.safe_dump(data))
    settings.update({"mlflow": False, "wandb": False})


def discs(folder: Path) -> None:
    """Six images with a disc each, planned and preprocessed for nnU-Net, with few channels."""
    raw = folder / "raw" / "Dataset001_Discs"
    for kind in ("imagesTr", "labelsTr"):
        (raw / kind).mkdir(parents=True)
    generator = np.random.default_rng(0)
    rows, columns = np.mgrid[:32, :32]
    for number in range(6):
        row, column = generator.integers(8, 24, 2)
        disc = ((rows - row) ** 2 + (columns - column) ** 2 < 36).astype(np.uint8)
        image = (disc * 128 + generator.integers(0, 64, disc.shape)).astype(np.uint8)
        if number == 3:  # overflows in the first convolution in fp16
            image = image.astype(np.uint16) * 255
        Image.fromarray(image).save(raw / "imagesTr" / f"disc_{number:03}_0000.png")
        Image.fromarray(disc).save(raw / "labelsTr" / f"disc_{number:03}.png")
    described = {
        "channel_names": {"0": "noNorm"},
        "labels": {"background": 0, "disc": 1},
        "numTraining": 6,
        "file_ending": ".png",
    }
    (raw / "dataset.json").write_text(json.dumps(described))
    os.environ.pop("nnUNet_n_proc_DA", None)
    from nnunetv2.experiment_planning import plan_and_preprocess_api as planning

    planning.extract_fingerprints([1], num_processes=1)
    planning.plan_experiments([1])
    plans = folder / "preprocessed" / "Dataset001_Discs" / "nnUNetPlans.json"
    # Edit the plans as nnU-Net's documentation describes: two images a batch, and few channels.
    planned = json.loads(plans.read_text())
    made = planned["configurations"]["2d"]
    made["batch_size"] = 2
    kwargs = made["architecture"]["arch_kwargs"]
    kwargs["features_per_stage"] = [4 for _ in kwargs["features_per_stage"]]
    plans.write_text(json.dumps(planned))
    (folder / "trainers").mkdir()
    (folder / "trainers" / "short.py").write_text(SHORT)
    planning.preprocess([1], configurations=("2d",), num_processes=(1,))


def sentences(folder: Path) -> None:
    """A small Llama, its tokenizer, and a few sentences."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

    set_seed(0)
    words = ["<pad>", "<eos>", "one", "two", "three", "four"]
    tokens = Tokenizer(WordLevel({word: at for at, word in enumerate(words)}, unk_token="<pad>"))
    tokens.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokens, pad_token="<pad>", eos_token="<eos>", unk_token="<pad>"
    )
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
        initializer_range=0.5,
        eos_token_id=1,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "data").mkdir()
    rows = [{"text": text} for text in ("one one one one one one", "one two three four")] * 24
    (folder / "data" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def bundle(folder: Path) -> None:
    """A MONAI bundle: its trainer with a small UNet on random volumes, one of them too large for fp16."""
    config = {
        "imports": ["$import monai", "$import torch"],
        "initialize": ["$monai.utils.set_determinism(0)"],
        "network": {
            "_target_": "UNet",
            "spatial_dims": 2,
            "in_channels": 1,
            "out_channels": 1,
            "channels": [4, 8],
            "strides": [2],
        },
        "loader": "$[dict(image=torch.randn(2, 1, 16, 16) * by, label=torch.ones(2, 1, 16, 16)) for by in @factors]",
        "factors": [1, 1, 1, 1, 1, 1e5, 1, 1, 1, 1, 1, 1],
        "trainer": {
            "_target_": "SupervisedTrainer",
            "device": "$torch.device('cpu')",
            "max_epochs": 1,
            "train_data_loader": "@loader",
            "epoch_length": 12,
            "network": "@network",
            "optimizer": "$torch.optim.SGD(@network.parameters(), lr=1e-2)",
            "loss_function": {"_target_": "DiceLoss", "sigmoid": True},
            "amp": True,
        },
        "run": ["$@trainer.run()"],
    }
    (folder / "train.json").write_text(json.dumps(config))


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
