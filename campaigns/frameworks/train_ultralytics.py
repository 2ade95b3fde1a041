"""Ultralytics' `YOLO(...).train(amp=True)`: its smallest detector, from its yaml, on drawn squares."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from data import squares
from ultralytics import YOLO


folder = Path(sys.argv[1])
squares(folder)
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
