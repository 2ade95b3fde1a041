"""The import contracts of docs/architecture.md hold, and import-linter detects violations."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[2]


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the tree under ``root`` with its own contracts."""
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'server'}"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_contract_is_kept() -> None:
    """No module imports from a higher layer or across a boundary."""
    verdict = lint_imports(ROOT)

    assert verdict.returncode == 0, verdict.stdout + verdict.stderr


PLANTED = [
    ("ampmon.wire", "ampmon_server.model.series", "Training never loads the service"),
    ("ampmon.spool.frame", "fastapi", "Training never loads the service"),
    ("ampmon.config", "ampmon.client.recorder", "The training side imports only from lower layers"),
    ("ampmon.stray", "", "The training side imports only from lower layers"),
    (
        "ampmon_server.model.series",
        "torch",
        "The service reads the wire and the numbers, and runs without torch",
    ),
    (
        "ampmon_server.charts.scale",
        "sqlalchemy",
        "Only the store speaks SQL, and charts never read it",
    ),
    (
        "ampmon_server.charts.scale",
        "ampmon_server.store",
        "The service imports only from lower layers",
    ),
    (
        "ampmon_server.model.series",
        "ampmon_server.charts",
        "The service imports only from lower layers",
    ),
    ("ampmon_server.stray", "", "The service imports only from lower layers"),
]
"""(module, import added to it, contract that this breaks)."""


@pytest.fixture(scope="module")
def violations(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """import-linter's lines for each contract, for a copy of the product with everything in PLANTED."""
    root = tmp_path_factory.mktemp("planted")
    shutil.copy(ROOT / "pyproject.toml", root)
    for tree in ("ampmon", "server/ampmon_server"):
        shutil.copytree(ROOT / tree, root / tree, ignore=shutil.ignore_patterns("__pycache__"))
    for module, imported, _ in PLANTED:
        folder = root / "server" if module.startswith("ampmon_server") else root
        with folder.joinpath(*module.split(".")).with_suffix(".py").open("a") as planted:
            planted.write(f"\nimport {imported}\n" if imported else "\n")
    verdict = lint_imports(root)
    assert verdict.returncode == 1, verdict.stdout + verdict.stderr
    lines = verdict.stdout.splitlines()
    starts = {name: lines.index(name) for _, _, name in PLANTED}
    ends = [*sorted(starts.values())[1:], len(lines)]
    parts = zip(sorted(starts, key=lambda name: starts[name]), ends, strict=True)
    return {name: lines[starts[name] : end] for name, end in parts}


@pytest.mark.parametrize(("module", "imported", "contract"), PLANTED)
def test_a_planted_violation_breaks_its_contract(
    violations: dict[str, list[str]], module: str, imported: str, contract: str
) -> None:
    """A forbidden import, and a module in no layer, are reported under the contract they break."""
    pattern = rf"- +{module} -> {imported} \(l\.\d+\)" if imported else f"- {module}"

    assert [line for line in violations[contract] if re.fullmatch(pattern, line)]


CHAIN_MAX = 16
IMPORT = re.compile(r"^from ([\w.]+) import (\([^)]*\)|.*)$", re.MULTILINE)
"""An import that a module makes as it is loaded: those for type checkers and in functions are indented."""


def test_no_chain_of_imports_is_longer_than_sixteen_modules() -> None:
    """From any module, no way along imports leads through more than 16 modules."""
    texts = {
        ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): text
        for root in (ROOT, ROOT / "server")
        for package in root.glob("ampmon*")
        for file in package.rglob("*.py")
        for text in [file.read_text()]
    }

    @cache
    def longest(module: str) -> tuple[str, ...]:
        chains = [
            longest(name if name in texts else base)
            for base, names in IMPORT.findall(texts[module])
            for name in (
                f"{base}.{each}" for each in re.findall(r"(\w+)(?: as \w+)?,?", names.split("#")[0])
            )
            if base in texts and name != module
        ]
        return (module, *max(chains, key=len, default=()))

    chain = max((longest(module) for module in texts), key=len)
    assert 10 < len(chain) <= CHAIN_MAX, chain
