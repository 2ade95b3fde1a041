"""The recipes in examples/, each trained to its end. The suite trains some of them for a few steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import recipe
from examples import test_recipes
from examples.test_recipes import one_thread


__all__ = ["one_thread"]  # for every test
FAR = 10**6


@pytest.mark.parametrize(
    "name", [*test_recipes.ALONE, test_recipes.ACTIVATIONS, *test_recipes.OTHERS]
)
def test_a_recipe_trains_as_with_the_stock_scaler(name: str, data_directory: Path) -> None:
    """Each recipe matches the stock scaler bit for bit, records each update and skip once, and lowers the loss."""
    test_recipes.trained_alike(name, data_directory, steps=None)


@pytest.mark.filterwarnings("ignore::ampmon.AmpmonWarning")
def test_a_disabled_scaler_learns(data_directory: Path) -> None:
    """The bfloat16 recipe trains and learns as with the stock scaler."""
    ours = recipe.run(test_recipes.DISABLED, stock=False)
    test_recipes.assert_identical(recipe.run(test_recipes.DISABLED, stock=True), ours)
    test_recipes.assert_learned(ours)


def test_recipes_of_several_processes_learn(tmp_path: Path) -> None:
    """Both ranks match the stock scaler bit for bit to the end, and the printed loss falls."""
    test_recipes.trained_together(tmp_path, FAR)
    for name in test_recipes.RUNS_HERE:
        for rank in range(test_recipes.RANKS):
            stock, ours = torch.load(tmp_path / f"{name}-{rank}.pt", weights_only=False)
            test_recipes.assert_identical(stock, ours)
            if rank == 0:
                test_recipes.assert_learned(ours)
