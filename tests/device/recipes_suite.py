"""Recipes of examples/ on the emulated device, in a process that test_device.py starts, and on CUDA by `make gpu`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import recipe
from device.place import PLACE, Device, device
from recipe import ledger
from recording import recording
from scaler.test_parity import bits


RECIPES = (
    "accumulation_with_clipping",
    "clip_by_norm",
    "gradient_accumulation",
    "gradient_penalty",
    "several_models",
    "typical",
)


@pytest.fixture
def emulated() -> Iterator[Device]:
    """The device with delays."""
    device().reset()
    device().jitter(200)
    yield device()
    device().reset()


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_as_with_the_stock_scaler(
    emulated: Device, name: str, data_directory: Path
) -> None:
    """Under jitter all that a recipe leaves is equal bit for bit, and each update and skip is recorded once."""
    stock = recipe.run(name, stock=True, place=PLACE)
    ours = recipe.run(name, stock=False, place=PLACE)
    assert bits(stock.weights, ours.weights)
    assert bits(stock.optimizers, ours.optimizers)
    assert bits(stock.scalers, ours.scalers)
    assert stock.printed == ours.printed
    assert any(any(skipped) for _, skipped, _ in stock.ledger)
    assert ledger(recording(data_directory)) == stock.ledger
