"""The wheel: its contents, and that it serves its page with only its own requirements installed."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path
from urllib.parse import urljoin

import pytest
from packaging.requirements import Requirement

import hatch_build
from serving import Server


ROOT = Path(__file__).parents[1]
TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", *arguments]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, documentation: Path) -> Path:
    """The wheel of this checkout, built by the build backend's hook; pip takes four times as long."""
    folder = tmp_path_factory.mktemp("wheel")
    build = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, folder], check=True, cwd=ROOT)
    return next(folder.glob("ampmon-*.whl"))


def required(requirement: Requirement, seen: dict[str, Distribution]) -> None:
    """Add to ``seen`` the distribution that meets a requirement, and all its requirements."""
    found = distribution(requirement.name)
    extras = requirement.extras or {""}
    if found.metadata["Name"].lower() in seen and not requirement.extras:
        return
    seen[found.metadata["Name"].lower()] = found
    for line in found.requires or []:
        needed = Requirement(line)
        if needed.marker is None or any(
            needed.marker.evaluate({"extra": extra}) for extra in extras
        ):
            required(needed, seen)


def requirements_of(wheel: Path, extra: str) -> Iterator[Distribution]:
    """The installed distributions that the wheel requires with an extra, so a forgotten requirement is missing."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
    seen: dict[str, Distribution] = {}
    for line in re.findall(r"^Requires-Dist: (.+)$", metadata, re.MULTILINE):
        needed = Requirement(line)
        if needed.marker is None or needed.marker.evaluate({"extra": extra}):
            required(needed, seen)
    return iter(seen.values())


def link(found: Distribution, site: Path) -> None:
    """Make an installed distribution's packages and metadata importable from ``site``."""
    for top in {
        file.parts[0] for file in found.files or [] if file.parts[0] not in {"..", "__pycache__"}
    }:
        target = site / top
        if not target.exists():
            target.symlink_to(Path(str(found.locate_file(top))))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with only the wheel and its server extra: no torch, no test tools."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False)
    interpreter = folder / "bin" / "python"
    pip("--python", str(interpreter), "install", "--no-deps", "--no-index", str(wheel))
    site = next(folder.glob("lib/python*/site-packages"))
    for found in requirements_of(wheel, "server"):
        link(found, site)
    return interpreter


@pytest.fixture
def installed(new_server: Callable[..., Server], python: Path) -> Server:
    return new_server(python=python)


def test_the_wheel_holds_the_product_and_nothing_else(wheel: Path, documentation: Path) -> None:
    """The wheel holds both import packages and the page, but no tests, examples or development files."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
    page = {
        name.removeprefix("ampmon_server/web/")
        for name in names
        if name.startswith("ampmon_server/web/")
    }
    sources = [*(ROOT / "ampmon").rglob("*.py"), *(ROOT / "server" / "ampmon_server").rglob("*.py")]
    browsers = {
        path.relative_to(ROOT / "web").as_posix()
        for kind in ("css", "js")
        for path in (ROOT / "web" / kind).rglob(f"*.{kind}")
    }

    assert {name.split("/")[0] for name in names} == {"ampmon", "ampmon_server"}
    assert {"ampmon/py.typed", "ampmon_server/py.typed"} <= set(names)
    assert len([name for name in names if name.endswith(".py")]) == len(sources)
    site = {
        f"docs/{path.relative_to(documentation)}"
        for path in documentation.rglob("*")
        if path.is_file() and path != hatch_build.PLOTLY  # the server sends its own copy
    }
    assert {"docs/index.html", "docs/llms.txt", "docs/findings/skip_rate.html"} <= site
    assert page == {"index.html", "roles.json", "errors.md", *browsers, *site}


def test_the_wheel_asks_for_no_torch(wheel: Path) -> None:
    """The wheel requires torch only with the extra torch."""
    assert "torch" not in {found.metadata["Name"] for found in requirements_of(wheel, "server")}
    assert "torch" in {found.metadata["Name"] for found in requirements_of(wheel, "torch")}


def assets(path: str, text: str) -> set[str]:
    """The paths that a page, style sheet or module at ``path`` refers to, except in comments."""
    code = re.sub(r"/\*.*?\*/|<!--.*?-->", "", text, flags=re.DOTALL)
    quoted = re.findall(
        r"""(?:src|href) ?= ?"([^"#]+)"|(?:from|import) "([^"]+)"|url\("?([^")]+)""", code
    )
    names = {next(filter(None, groups)) for groups in quoted}
    names |= {f"../../{name}" for name in re.findall(r"""src = at\("([^"]+)"\)""", code)}
    return {urljoin(path, name) for name in names if not name.startswith(("data:", "http"))}


def test_the_wheel_serves_its_page_with_all_its_assets(installed: Server) -> None:
    """The installed wheel serves the page and every file it refers to, with the right content type."""
    waiting, arrived = ["/", "/docs/"], dict[str, str]()
    while waiting:
        path = waiting.pop()
        answer = installed.request("GET", path)
        assert answer.status == 200, f"{path}: {answer.status}"
        assert answer.data
        arrived[path] = answer.headers["content-type"].partition(";")[0]
        if not re.search("plotly|bundle", path) and arrived[path].startswith("text/"):
            found = assets(path, answer.data.decode())
            waiting += [name for name in found if name not in arrived and name not in waiting]

    assert arrived.pop("/") == arrived.pop("/docs/") == "text/html"
    for path in [path for path in arrived if path.startswith("/docs/deploy/")]:
        del arrived[path]  # files to download
    assert {path: kind for path, kind in arrived.items() if kind != TYPES[Path(path).suffix]} == {}
    assert any("plotly" in path for path in arrived)
    scripts = {path.name for path in (ROOT / "web" / "js").glob("*.js")}
    # A report contains its own script.
    found = {Path(path).name for path in arrived if path.startswith("/js/")}
    assert found == scripts - {"report.js"}


def test_the_wheel_runs_programs_watched_and_has_no_module_to_import_by_accident(
    python: Path, tmp_path: Path
) -> None:
    """`ampmon run` works from the wheel, and the modules of its startup folder cannot be imported by accident."""
    names = "('sitecustomize', 'usercustomize', 'ampmon_startup')"
    code = f"import importlib.util as u; print(*map(u.find_spec, {names}))"
    plain = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert "site-packages/ampmon" not in plain.stdout

    command = [python.with_name("ampmon"), "run", "--no-serve", python, "-c", "import sys; "]
    command[-1] += "print('ampmon_startup' in sys.modules, 'ampmon' in sys.modules)"
    ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert ran.stdout == "True False\n"
    assert "has no torch, so nothing can be watched there" in ran.stderr


def test_the_wheel_explains_an_error_message(python: Path) -> None:
    """`ampmon doctor` finds the error index in the wheel."""
    command = [
        python.with_name("ampmon"),
        "doctor",
        "ValueError: Attempting to unscale FP16 gradients.",
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)

    assert ran.stdout.startswith("Attempting to unscale FP16 gradients\n")


def test_the_wheel_without_torch_says_what_is_missing(wheel: Path, python: Path) -> None:
    """Without torch, using the scaler raises an error that names the wheel's extra to install."""
    ran = subprocess.run(
        [python, "-c", "import ampmon; ampmon.GradScaler"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert f"pip install '{wheel}[torch]'" in ran.stderr
