"""Recipes of examples/, on the emulated device in a process that test_device.py starts, and on CUDA by `make gpu`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import recipe
from benchmarks.server import free_port
from device.place import EMULATED, PLACE, Device, device
from recipe import ledger
from recording import recording
from scaler.test_parity import bits


RECIPES = (
    pytest.param("accumulation_with_clipping", marks=[pytest.mark.rare] if EMULATED else []),
    "gradient_penalty",
    "several_models",
)
"""Together they take every path through the scaler that the other recipes take."""
STEPS = 26 if EMULATED else None
"""Enough for an overflow and a growth of the scale."""
OTHERS = () if EMULATED else ("clip_by_norm", "gradient_accumulation", "typical")


@pytest.fixture
def emulated() -> Iterator[Device]:
    """The device with delays."""
    device().reset()
    device().jitter(200)
    yield device()
    device().reset()


@pytest.mark.parametrize("name", [*RECIPES, *OTHERS])
def test_a_recipe_trains_as_with_the_stock_scaler(
    emulated: Device, name: str, data_directory: Path
) -> None:
    """Under jitter a recipe ends bit for bit as with the stock scaler, and each update and skip is recorded once."""
    stock = recipe.run(name, stock=True, place=PLACE, steps=STEPS)
    ours = recipe.run(name, stock=False, place=PLACE, steps=STEPS)
    assert bits(stock.weights, ours.weights)
    assert bits(stock.optimizers, ours.optimizers)
    assert bits(stock.scalers, ours.scalers)
    assert stock.printed == ours.printed
    assert any(any(skipped) for _, skipped, _ in stock.ledger)
    assert ledger(recording(data_directory)) == stock.ledger


@pytest.mark.skipif(EMULATED, reason="no process group knows the emulated device")
def test_two_processes_train_as_with_the_stock_scaler(tmp_path: Path) -> None:
    """Two processes with DDP, on one GPU if there is one, end bit for bit as with the stock scaler."""
    words = ["-c", "import recipe; recipe.main()", str(tmp_path), "2"]
    ports = ",".join(str(free_port()) for _ in range(2))
    done = subprocess.run(
        [sys.executable, *words, "60", ports, "ddp"],
        cwd=Path(recipe.__file__).parent,
        env={**os.environ, "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        stock, ours = torch.load(tmp_path / f"ddp-{rank}.pt", weights_only=False)
        assert bits(stock.weights, ours.weights)
        assert bits(stock.optimizers, ours.optimizers)
        assert bits(stock.scalers, ours.scalers)
        assert any(any(skipped) for _, skipped, _ in stock.ledger)
