"""`ampmon check`: a preflight of a script's function, for people and programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from typed import typed


SCRIPT = """
import argparse

import torch
from torch import nn
from beside_it import FACTOR

print("loading")
arguments = argparse.ArgumentParser()
arguments.add_argument("--lr", type=float)
arguments.parse_args()

class Squares(nn.Module):
    def forward(self, inputs):
        squares = inputs * inputs + 1e-3
        return inputs.sign() * (squares / squares.mean(-1, keepdim=True)).sqrt()

def healthy(factor=1.0):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), Squares(), nn.Linear(64, 4))
    batch = factor * torch.randn(8, 16), torch.randint(0, 4, (8,))
    return model, batch, lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1])

def sick():
    return healthy(FACTOR)

def broken():
    raise OSError("no data")

def half():
    model, batch, loss_fn = healthy()
    return model.half(), batch, loss_fn

def two():
    return 1, 2

def ends():
    raise SystemExit("usage: train.py DATA")
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ampmon", "check", "a command's"])
    (tmp_path / "beside_it.py").write_text("FACTOR = 1000.0\n")
    path = tmp_path / "checked_training.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_is_checked(script: Path) -> None:
    """A healthy model exits with 0, a sick one with 1 and a fix as text or JSON. Only code exceeds 80 columns.

    The script reads its own arguments as it is imported, and gets none of the command's.
    """
    healthy = typed("check", f"{script}:healthy")
    assert healthy.code == 0
    assert healthy.out.startswith("Nothing to change")

    sick = typed("check", f"{script}:sick")
    lines = sick.out.splitlines()
    assert sick.code == 1
    assert "first in module 1 (Squares)" in " ".join(lines[:2])
    assert "    with torch.autocast" in lines[-2]
    assert max(map(len, lines[:-2])) <= 80

    code, out, _ = typed("check", f"{script}:sick", "--json")
    answer = json.loads(out)
    assert (code, answer["problem"], answer["modules"][0]["name"]) == (1, True, "1")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (":broken", "OSError: no data"),
        (":half", "call model.float"),
        (":two", "it has to return (model, batch, loss_fn)"),
        (":ends", "the script exits with 'usage: train.py DATA'; guard its training code with if"),
        (":none", "has no function 'none'"),
        (":FACTOR", "has no function 'FACTOR'"),
        ("", "names no function; write"),
        (":", "names no function; write"),
        ("x:none", "no such script; write SCRIPT.py:FUNCTION"),
    ],
)
def test_what_cannot_be_checked_is_reported(script: Path, function: str, words: str) -> None:
    """A function that fails, returns something else or is missing exits with 2 and a reason."""
    code, out, err = typed("check", f"{script}{function}")
    assert (code, out) == (2, "")
    assert words in err
