"""Ultralytics' `YOLO(...).train(amp=True)`: its smallest detector, from its yaml, on squares that are drawn here."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import yaml
from PIL import Image
from ultralytics import YOLO, settings


folder = Path(sys.argv[1])
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
data = {"path": str(folder / "squares"), "train": "images", "val": "images", "names": ["square"]}
(folder / "squares.yaml").write_text(yaml.safe_dump(data))
settings.update({"mlflow": False, "wandb": False})
model = YOLO("yolo11n.yaml")
model.train(
    data=folder / "squares.yaml",
    epochs=3,
    imgsz=32,
    batch=4,
    nbs=4,
    workers=0,
    device="cpu",
    amp=True,
    val=False,
    plots=False,
    project=folder,
)
torch.save(model.trainer.model.state_dict(), folder / "weights.pt")
