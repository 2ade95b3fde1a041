"""The documentation: it names everything public, its code runs, and its links work."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
from starlette.routing import Route

import ampmon
import scripts
from ampmon import wire
from ampmon_server import report
from ampmon_server.charts import FIGURES
from ampmon_server.cli.parser import parser
from ampmon_server.http.app import create_app
from ampmon_server.pages import assets
from ampmon_server.settings import Settings
from campaigns import reference
from campaigns.gallery import exhibits


ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CHANGELOG.md"]
    + [
        page
        for at in ("docs", "docs/decisions", "docs/deploy", ".github")
        for page in ROOT.glob(f"{at}/*.md")
    ]
)
ERRORS = "errors.md"
"""Its code blocks are parts of one training, which `tests/errors/test_index.py` runs."""
REFERENCE = re.sub(
    r"^::: (\S+)$",
    r"`\1`",
    "\n".join(
        (ROOT / "docs" / f"{name}.md").read_text()
        for name in ("python", "cli", "environment", "http")
    ),
    flags=re.MULTILINE,
)
"""The reference pages, with each generated name as inline code."""
SOURCES = sorted([*ROOT.glob("ampmon/**/*.py"), *ROOT.glob("server/**/*.py")])
NAMED_TEST = re.compile(r"`((?:tests|campaigns)/[\w/]+\.py)::(\w+)`")
NAMED_FILE = re.compile(r"`(\w+/[\w/]+\.py)\b")
DOES_NOT_WAIT = re.compile(r"\b(syncs?|blocks?|blocking|waits?)\b", re.IGNORECASE)


def missing(names: Collection[str], page: str = REFERENCE) -> set[str]:
    """The names that the page does not show as code."""
    return {
        name
        for name in names
        if not re.search(rf"`[^`\n]*{re.escape(name)}(?![\w/{{-])[^`\n]*`", page)
    }


@cache
def functions_of(path: str) -> frozenset[str]:
    """The function names in a file, empty if the file does not exist."""
    file = ROOT / path
    return frozenset(re.findall(r"^def (\w+)\(", file.read_text(), re.M) if file.is_file() else ())


def not_there(page: str) -> list[str]:
    """The tests that a page names and that do not exist."""
    return [
        f"{path}::{name}"
        for path, name in NAMED_TEST.findall(page)
        if name not in functions_of(path)
    ]


def environment_variables() -> set[str]:
    return {
        name for path in SOURCES for name in re.findall(r"\bAMPMON_[A-Z_]+\b", path.read_text())
    }


@cache
def command_line() -> frozenset[str]:
    """The flags and subcommands of the command line."""
    words, left = {"--no-serve"}, [parser()]
    while left:
        command = left.pop()
        words.add(command.prog)
        for action in command._actions:
            words.update(each for each in action.option_strings if each.startswith("--"))
            if isinstance(action, argparse._SubParsersAction):
                left += action.choices.values()
    return frozenset(words) - {"--help"}


def routes(directory: Path) -> set[str]:
    """Each method and path of the server."""
    app = create_app(Settings(data_directory=directory))
    walked = [route for route in app.routes if isinstance(route, Route)]
    assert len(walked) == len(app.routes)
    return {
        f"{method} {route.path}"
        for route in walked
        for method in (route.methods or set()) - {"HEAD"}
    }


def code_blocks(language: str) -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for block in re.findall(
            rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE
        ):
            yield page.name, block


def test_every_public_name_exists_and_is_documented() -> None:
    """Every name in `ampmon.__all__` exists, is listed once, and is in the reference."""
    public = [name for name in ampmon.__all__ if not name.startswith("_")]

    assert all(hasattr(ampmon, name) for name in ampmon.__all__)
    assert len(set(ampmon.__all__)) == len(ampmon.__all__)
    assert missing({f"ampmon.{name}" for name in public}) == set()


@pytest.mark.parametrize(
    "name", ["GradScaler", "watch", "init", "log", "metrics", "stream", "finish"]
)
def test_every_public_call_says_whether_it_waits(name: str) -> None:
    """The docstring of every call in a training loop says whether it syncs the device or blocks."""
    assert DOES_NOT_WAIT.search(getattr(ampmon, name).__doc__ or "")


def test_every_environment_variable_is_documented() -> None:
    """The reference has exactly the AMPMON_* variables that the code names."""
    named = environment_variables()

    assert missing(named) == set()
    assert set(re.findall(r"\bAMPMON_[A-Z_]+\b", REFERENCE)) <= named


def test_every_command_and_flag_is_documented() -> None:
    """The reference has every subcommand and flag."""
    assert "ampmon serve" in command_line()
    assert missing(command_line()) == set()


def test_every_route_is_documented(tmp_path: Path) -> None:
    """The reference has every method and path of the server."""
    known = routes(tmp_path)
    assert "POST /api/v1/ingest" in known
    assert missing(known) == set()


def test_every_figure_and_event_is_documented() -> None:
    """The reference has every figure, every event of an update and every kind of event that a training records."""
    sources = (each.read_text() for each in (ROOT / "ampmon").rglob("*.py"))
    kinds = {kind for text in sources for kind in re.findall(r'\.event\(\s*"(\w+)"', text)}
    assert kinds >= {"init", "error", "manual_set"}
    assert missing({*FIGURES, *get_args(wire.UpdateEvent), *kinds}) == set()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="argparse adds defaults to its help")
@pytest.mark.parametrize("name", reference.PAGES)
def test_the_generated_reference_is_up_to_date(name: str) -> None:
    """The pages on the command line and the API equal the output of `make docs`."""
    assert (ROOT / "docs" / name).read_text() == reference.page(name)


def test_the_gallery_is_what_its_command_shows() -> None:
    """The gallery page equals the output of `make gallery`, with ten different findings."""
    page = (ROOT / "docs" / "gallery.md").read_text()

    assert page == exhibits.page()
    assert len({each.rule for each in exhibits.EXHIBITS}) == 10


def test_the_gallery_looks_like_a_report_of_today() -> None:
    """The styles and scripts that the gallery's reports share are those of a new report. `make gallery` renews them."""
    for name, of_today in (("css", assets.embedded(report.STYLES)), ("js", report.script())):
        shared = (ROOT / "docs" / "gallery" / f"report.{name}").read_text("utf-8")
        assert shared.strip() == of_today.strip(), name


def test_the_search_for_what_is_missing_can_fail() -> None:
    """A name that a page lacks, or has only within a longer name, is reported as missing."""
    assert missing({"--port"}, "`--portable` and --port") == {"--port"}
    assert missing({"--port"}, "`ampmon serve --port 80`") == set()


@pytest.mark.parametrize(
    ("page", "block"), [each for each in code_blocks("python") if each[0] != ERRORS]
)
def test_python_blocks_run(page: str, block: str) -> None:
    """Every Python block in the documentation runs in a process of its own."""
    scripts.run("-c", block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link leads to an existing file and heading."""
    targets = re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text())

    assert [target for target, _ in targets if not (page.parent / target).exists()] == []
    assert [
        (target, heading)
        for target, heading in targets
        if heading and heading not in anchors(page.parent / target if target else page)
    ] == []


def test_files_named_in_decisions_exist() -> None:
    """Every Python file that a decision or the architecture names exists, below the root or a package."""
    places = [ROOT, ROOT / "ampmon", ROOT / "server", ROOT / "server" / "ampmon_server"]
    pages = [*ROOT.glob("docs/decisions/*.md"), ROOT / "docs" / "architecture.md"]
    named = {(page.name, file) for page in pages for file in NAMED_FILE.findall(page.read_text())}

    assert len(named) >= 20
    assert [each for each in named if not any((at / each[1]).exists() for at in places)] == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page: GitHub's for each heading, and the names of generated entries."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    generated = set(re.findall(r"^::: (\S+)$", text, re.MULTILINE))
    return generated | {
        re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings
    }


def test_a_link_to_no_heading_would_be_found() -> None:
    """A heading has GitHub's anchor: lower case, without punctuation."""
    assert "data-directory" in anchors(ROOT / "docs" / "environment.md")
    assert "the-data-directory" not in anchors(ROOT / "docs" / "environment.md")


def test_every_promise_is_held_by_tests() -> None:
    """Every promise about data names at least one test, and every test named exists."""
    page = (ROOT / "docs" / "promises.md").read_text().partition("## What is not promised")[0]
    promises = [text for text in page.split("\n\n") if text.startswith("**")]

    assert len(promises) >= 10
    assert [promise for promise in promises if not NAMED_TEST.search(promise)] == []
    assert not_there(page) == []


def test_every_case_of_attack_and_failure_is_listed_once() -> None:
    """Every numbered case in docs/security.md names existing tests or says that it is not yet proven."""
    page = (ROOT / "docs" / "security.md").read_text()
    cases = re.findall(r"^\| (\d+) \| .* \|$", page, re.MULTILINE)
    rows = [line for line in page.splitlines() if re.match(r"\| \d", line)]

    assert len(cases) >= 33
    assert [int(number) for number in cases] == list(range(1, len(cases) + 1))
    assert [
        row for row in rows if not NAMED_TEST.search(row) and "not yet" not in row.lower()
    ] == []
    assert not_there(page) == []


def test_a_test_that_is_not_there_is_noticed() -> None:
    """A test or test file that does not exist is reported."""
    file = "tests/architecture/test_documentation.py"
    gone = [f"{file}::test_nothing", "tests/test_nowhere.py::test_a"]

    assert not_there(" ".join(f"`{each}`" for each in gone)) == gone
    assert not_there(f"`{file}::test_a_test_that_is_not_there_is_noticed`") == []


STOCK_TRAINING = """
import torch
from torch import nn
from torch.amp import GradScaler

model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = GradScaler("cpu", init_scale=2.0**20)
for _ in range(12):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(torch.randn(8, 16)), torch.randint(0, 4, (8,)))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
monitor = getattr(scaler, "monitor", None)
print(monitor.updates if monitor else "not watched")
"""


def apply(diff: str, script: str) -> str:
    """Replace each removed line of the diff in the script by the added line below it."""
    lines = [line for line in diff.splitlines() if line[:1] in "+-"]
    for removed, added in zip(lines[::2], lines[1::2], strict=True):
        assert (removed[0], added[0]) == ("-", "+")
        assert removed[1:].strip() in script
        script = script.replace(removed[1:].strip(), added[1:].strip())
    return script


def test_the_one_changed_line_of_the_readme_is_enough(data_directory: Path) -> None:
    """The README's diff makes a stock training script record each of its updates."""
    diffs = [block for page, block in code_blocks("diff") if page == "README.md"]
    programs = (STOCK_TRAINING, apply(diffs[0], STOCK_TRAINING))
    printed = [scripts.run("-c", program).stdout.strip() for program in programs]

    assert printed == ["not watched", "12"]
    assert os.listdir(data_directory / "spool")


def test_nothing_installs_ampmon_by_its_name() -> None:
    """No page and no view tells you to install ampmon by its name, because it is not published."""
    places = [*PAGES, ROOT / "web/index.html"]
    commands = re.compile(r"(?:^\$ |<code>|`)(pip install [^`<\n]*)", re.MULTILINE)
    found = [each for place in places for each in commands.findall(place.read_text())]

    assert "pip install '.[torch,server]'" in {each.partition("  ")[0] for each in found}
    assert [each for each in found if re.search(r"[ ']ampmon\b", each)] == []
