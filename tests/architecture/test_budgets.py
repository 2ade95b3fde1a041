"""Size limits for code and required docstrings, read from the source without importing it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeAlias

import pytest


ROOT = Path(__file__).parents[2]
LINES_MAX = 400
FUNCTION_LINES_MAX = 50
FUNCTION_LINES_MEDIAN_MAX = 10
MODULES_MAX = 25
ROOT_MODULES_MAX = 6
SAME_NAME = {"AmpmonCallback"}
"""Users of each framework import its own class by the name they would guess."""
VAGUE = {"utils", "util", "helpers", "manager", "common", "base", "misc"}

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class Measured(NamedTuple):
    place: str
    lines: int


def sources(*patterns: str, root: Path = ROOT) -> list[Path]:
    return sorted(path for pattern in patterns for path in root.glob(pattern))


def code() -> list[Path]:
    return sources("ampmon/**/*.py", "server/**/*.py", "benchmarks/**/*.py", "examples/**/*.py")


def functions(path: Path) -> Iterator[Function]:
    """All functions defined by statements, at any depth."""
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Function):
            yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            below = getattr(node, part, ())
            waiting += below if isinstance(below, list) else ()  # a lambda's body is an expression


def function_lines(paths: list[Path]) -> list[Measured]:
    """Each function's length from its ``def`` to its end, with docstring and without decorators."""
    return [
        Measured(f"{path.name}:{node.lineno} {node.name}", (node.end_lineno or 0) - node.lineno + 1)
        for path in paths
        for node in functions(path)
    ]


def file_lines(paths: list[Path]) -> list[Measured]:
    return [Measured(path.name, len(path.read_text().splitlines())) for path in paths]


def over(measured: list[Measured], limit: int) -> list[Measured]:
    return [each for each in measured if each.lines > limit]


def crowded(root: Path = ROOT) -> list[str]:
    """Packages with too many modules."""
    roots = {root / "ampmon", root / "server" / "ampmon_server"}
    modules = sources("ampmon/**/*.py", "server/ampmon_server/**/*.py", root=root)
    counts = Counter(path.parent for path in modules)
    return [
        str(folder.relative_to(root))
        for folder, count in counts.items()
        if count > (ROOT_MODULES_MAX if folder in roots else MODULES_MAX)
    ]


def class_names(paths: list[Path]) -> Counter[str]:
    """The number of classes with each name."""
    return Counter(
        name for path in paths for name in re.findall(r"^ *class (\w+)", path.read_text(), re.M)
    )


def undocumented_tests(path: Path) -> list[str]:
    return [
        f"{path.name}:{node.lineno} {node.name}"
        for node in functions(path)
        if node.name.startswith("test_") and not ast.get_docstring(node)
    ]


def test_files_stay_short() -> None:
    """No file of the product has more than 400 lines."""
    assert over(file_lines([*code(), *sources("web/js/**/*.js")]), LINES_MAX) == []


def test_functions_stay_short() -> None:
    """No function has more than 50 lines, and the median is at most 10."""
    measured = function_lines(code())

    assert over(measured, FUNCTION_LINES_MAX) == []
    assert median(each.lines for each in measured) <= FUNCTION_LINES_MEDIAN_MAX


def test_packages_stay_small() -> None:
    """A package has at most 25 modules, and a root package at most six."""
    assert crowded() == []


def test_no_two_classes_share_a_name() -> None:
    """No two classes of the product have the same name, except SAME_NAME."""
    counts = class_names(sources("ampmon/**/*.py", "server/**/*.py"))

    assert {name for name, count in counts.items() if count > 1} <= SAME_NAME


def test_every_module_says_what_it_is() -> None:
    """Every module of the product begins with a docstring."""
    texts = {path: path.read_text() for path in code()}

    assert [path for path, text in texts.items() if text and not text.startswith('"""')] == []


def test_no_module_has_a_vague_name() -> None:
    """No module or package has a vague name, such as utils."""
    named = {path.stem for path in code()} | {path.parent.name for path in code()}

    assert named & VAGUE == set()


def test_nothing_is_left_to_do() -> None:
    """No source file has a TODO, FIXME, XXX or HACK note."""
    files = [*code(), *sources("web/**/*.js", "web/*.css", "tests/**/*.py", "tests/**/*.js")]
    note = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    here = Path(__file__)

    assert [
        path
        for path in files
        if path != here and "node_modules" not in path.parts and note.search(path.read_text())
    ] == []


def test_every_test_states_its_fact(request: pytest.FixtureRequest) -> None:
    """Every test function has a docstring."""
    collected = [item for item in request.session.items if isinstance(item, pytest.Function)]
    assert [item.nodeid for item in collected if not item.function.__doc__] == []
    suites = sources("tests/**/*_suite.py", "campaigns/**/test_*.py")  # not collected with the rest
    assert [place for path in suites for place in undocumented_tests(path)] == []


@pytest.fixture
def overgrown(tmp_path: Path) -> Path:
    """A file that exceeds each limit by one line."""
    path = tmp_path / "test_overgrown.py"
    path.write_text(
        "def test_long():\n"
        + "    pass\n" * FUNCTION_LINES_MAX
        + "#\n" * (LINES_MAX - FUNCTION_LINES_MAX)
    )
    return path


def test_the_budgets_can_be_broken(overgrown: Path) -> None:
    """Long files and functions, undocumented tests, crowded packages and duplicate class names are reported."""
    package = overgrown.parent / "ampmon"
    package.mkdir()
    for number in range(ROOT_MODULES_MAX + 1):
        (package / f"{number}.py").write_text("class Twice: ...\n")
    assert crowded(overgrown.parent) == ["ampmon"]
    assert class_names(sources("ampmon/*.py", root=overgrown.parent))["Twice"] > 1
    assert over(file_lines([overgrown]), LINES_MAX) == [
        Measured("test_overgrown.py", LINES_MAX + 1)
    ]
    assert over(function_lines([overgrown]), FUNCTION_LINES_MAX) == [
        Measured("test_overgrown.py:1 test_long", FUNCTION_LINES_MAX + 1)
    ]
    assert undocumented_tests(overgrown) == ["test_overgrown.py:1 test_long"]
