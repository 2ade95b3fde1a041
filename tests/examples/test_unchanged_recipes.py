"""Recipes with torch's own scaler and nothing of ampmon's in them, watched: as they train without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import scripts
from recipe import ledger
from recording import recording


NAMES = (
    "accumulation_with_clipping",
    "fused_optimizers",
    "several_models",
)
PROGRAM = """
import hashlib, json, os, pickle, sys
import torch
from torch.utils._pytree import tree_map
torch.set_num_threads(1)
folder, watched, *names = sys.argv[1:]
if watched == "watched":
    import ampmon
    ampmon.auto()
import recipe

def plain(leaf):
    return leaf.numpy().tobytes().hex() if isinstance(leaf, torch.Tensor) else leaf

left = {}
for name in names:
    os.environ["AMPMON_DIR"] = os.path.join(folder, name)
    outcome = recipe.run(name, stock=True)
    if watched == "watched":
        ampmon.finish()
    state = [outcome.weights, outcome.optimizers, outcome.scalers, outcome.random, outcome.printed]
    digest = hashlib.sha256(repr(tree_map(plain, state)).encode()).hexdigest()
    left[name] = [digest, outcome.ledger]
print(json.dumps(left))
"""


def left(folder: Path, watched: str) -> dict[str, Any]:
    """Of each recipe, a hash of its state at its end, and the ledger that the test keeps beside it."""
    at = Path(__file__).parents[1]
    program = f"import sys; sys.path[:0] = {[str(at), str(at.parent)]!r}\n{PROGRAM}"
    done = scripts.run("-c", program, str(folder), watched, *NAMES)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_recipes_with_nothing_changed_in_them_train_alike_and_are_recorded(tmp_path: Path) -> None:
    """Weights, states and random numbers are equal bit for bit; the ledger has each update and skip, and each name."""
    stock, ours = left(tmp_path, "stock"), left(tmp_path, "watched")
    assert ours == stock
    for name in NAMES:
        recorded = recording(tmp_path / name)
        assert json.loads(json.dumps(ledger(recorded))) == stock[name][1], name
        parameters = recorded.header().parameters
        assert not [each.name for each in parameters if each.name.startswith("parameter ")], name
