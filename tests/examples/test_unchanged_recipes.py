"""Watched recipes with torch's own scaler and no ampmon code train as they do unwatched."""

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
folder, *names = sys.argv[1:]
import ampmon
import recipe

def plain(leaf):
    return leaf.numpy().tobytes().hex() if isinstance(leaf, torch.Tensor) else leaf

def left():
    for name in names:
        os.environ["AMPMON_DIR"] = os.path.join(folder, name)
        outcome = recipe.run(name, stock=True, steps=34)
        ampmon.finish()
        state = [outcome.weights, outcome.optimizers, outcome.scalers, outcome.random, outcome.printed]
        digest = hashlib.sha256(repr(tree_map(plain, state)).encode()).hexdigest()
        yield name, [digest, outcome.ledger]

stock = dict(left())
nothing = not os.listdir(folder)
ampmon.auto()
print(json.dumps([nothing, stock, dict(left())]))
"""


def trained(folder: Path) -> tuple[bool, dict[str, Any], dict[str, Any]]:
    """Train each recipe before scalers are watched, and after.

    Return whether the first round recorded nothing, then for each round a hash of each recipe's final state and the
    ledger that the test keeps.
    """
    at = Path(__file__).parents[1]
    program = f"import sys; sys.path[:0] = {[str(at), str(at.parent)]!r}\n{PROGRAM}"
    done = scripts.run("-c", program, str(folder), *NAMES)
    nothing, stock, watched = json.loads(done.stdout.splitlines()[-1])
    return nothing, stock, watched


def test_recipes_with_nothing_changed_in_them_train_alike_and_are_recorded(tmp_path: Path) -> None:
    """Watched recipes end bit for bit as unwatched ones. The recording has each update, skip and parameter name."""
    nothing, stock, ours = trained(tmp_path)
    assert nothing
    assert ours == stock
    for name in NAMES:
        recorded = recording(tmp_path / name)
        assert json.loads(json.dumps(ledger(recorded))) == stock[name][1], name
        parameters = recorded.header().parameters
        assert not [each.name for each in parameters if each.name.startswith("parameter ")], name
