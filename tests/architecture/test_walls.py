"""The walls of docs/architecture.md, as import-linter checks them, and proof that they would be seen to fall."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[2]


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """import-linter's verdict on the tree under ``root``, with that tree's own contracts."""
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'server'}"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_contract_is_kept() -> None:
    """No module imports from a higher floor or across a wall."""
    verdict = lint_imports(ROOT)

    assert verdict.returncode == 0, verdict.stdout + verdict.stderr


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the product's source to plant things in."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for tree in ("ampmon", "server/ampmon_server"):
        shutil.copytree(ROOT / tree, tmp_path / tree, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def broken(root: Path) -> list[str]:
    """The contracts that import-linter reports as broken."""
    verdict = lint_imports(root)
    assert verdict.returncode == 1, verdict.stdout + verdict.stderr
    return [line for line in verdict.stdout.splitlines() if line.endswith("BROKEN")]


@pytest.mark.parametrize(
    ("module", "statement", "contract"),
    [
        ("ampmon/wire.py", "import ampmon_server.series", "Training never loads the service"),
        ("ampmon/spool/frame.py", "import fastapi", "Training never loads the service"),
        ("ampmon/config.py", "import ampmon.recorder", "The training side imports only from lower"),
        ("ampmon/stray.py", "", "The training side imports only from lower"),
        ("server/ampmon_server/series.py", "import torch", "runs without torch"),
        ("server/ampmon_server/figures/scale.py", "import sqlalchemy", "Only the store speaks SQL"),
        (
            "server/ampmon_server/figures/scale.py",
            "import ampmon_server.store",
            "The service imports",
        ),
        ("server/ampmon_server/series.py", "import ampmon_server.figures", "The service imports"),
        ("server/ampmon_server/stray.py", "", "The service imports"),
    ],
)
def test_a_planted_violation_breaks_its_contract(
    copy: Path, module: str, statement: str, contract: str
) -> None:
    """An import across a wall, and a module on no floor, are refused, and the contract that they break is named."""
    with (copy / module).open("a") as planted:
        planted.write(f"\n{statement}\n")

    assert [line for line in broken(copy) if contract in line]
