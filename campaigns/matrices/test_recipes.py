"""The recipes in examples/ that the suite leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import test_recipes
from examples.test_recipes import one_thread


__all__ = ["one_thread"]  # for every test


@pytest.mark.parametrize("name", test_recipes.OTHERS)
def test_a_recipe_trains_as_with_the_stock_scaler(name: str, data_directory: Path) -> None:
    """Overflows included, all that is left is equal bit for bit, and each update and skip is in the spool once."""
    test_recipes.trained_alike(name, data_directory)
