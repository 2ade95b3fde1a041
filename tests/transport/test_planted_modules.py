"""Programs that ampmon starts run no module from a data directory or the user's project."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ampmon_server  # noqa: F401 - its programs are started too
from ampmon import sender
from ampmon.system import interpreter
from ampmon_server.alerting.delivery import deliver
from ampmon_server.alerting.messages import trial
from ampmon_server.alerting.targets import Target
from attempts import Attempt, end_sender
from waiting import DEADLINE_S, wait_for


ROOT = Path(__file__).parents[2]
NAMES = ("msgspec", "queue", "logging", "email", "urllib3", "json", "pickle", "multiprocessing")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules that leave a mark when run: the working directory, on PYTHONPATH and a data directory."""
    folder = tmp_path / "shared"
    folder.mkdir()
    for name in NAMES:
        mark = folder / f"{name}.ran"
        (folder / f"{name}.py").write_text(
            f"open({str(mark)!r}, 'w').close()\nraise SystemExit(7)\n"
        )
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def ran(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.ran"))


def test_planted_modules_would_run(folder: Path) -> None:
    """`python -m` in the folder does run its modules, so the other tests could fail."""
    subprocess.run([sys.executable, "-m", "ampmon.sender", folder], check=False)

    assert ran(folder)


def test_the_sender_runs_no_module_of_its_data_directory(folder: Path) -> None:
    """The sender starts as a process at the root directory and runs no planted module."""
    attempt = Attempt(folder)
    sender.ensure_running(folder)
    wait_for(lambda: ran(folder) or sender.status(folder))
    status = sender.status(folder)

    assert ran(folder) == []
    assert status is not None
    assert status.pid != os.getpid()
    assert Path(f"/proc/{status.pid}/cwd").resolve() == Path("/")
    attempt.spool.close()
    end_sender(folder)


def test_no_program_of_the_service_runs_a_planted_module(folder: Path) -> None:
    """Neither the program that sends an alert nor `ampmon_server.cli` runs a planted module."""
    target = Target(name="own", url="json://127.0.0.1:9")
    asyncio.run(deliver(target, trial("own", None), allow_private=True))
    help_of_cli = interpreter.command("ampmon_server.cli", "--help")
    done = subprocess.run(help_of_cli, capture_output=True, timeout=DEADLINE_S, check=False)

    assert done.returncode == 0, done.stderr
    assert ran(folder) == []


def test_the_folder_of_the_package_comes_after_the_standard_library(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program imports the same ampmon as this process, has absolute paths only, and runs no planted module."""
    monkeypatch.setattr(sys, "path", ["", str(folder), *sys.path])
    program = "import sys, ampmon; print(*sys.path, ampmon.__file__, sep='\\n')"
    (folder / "shown.py").write_text(program)
    *path, file = subprocess.run(
        [*interpreter.command("ampmon.sender")[:4], "shown"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()

    assert file == str(ROOT / "ampmon" / "__init__.py")
    assert path.index(str(ROOT)) < path.index(str(folder))
    assert all(place.startswith("/") for place in path)
    assert ran(folder) == []


def test_a_spawned_process_runs_no_planted_module(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process spawned from the root runs no planted module. Spawned from the folder, it does."""
    monkeypatch.delenv("PYTHONPATH")
    spawn = multiprocessing.get_context("spawn")
    with interpreter.at_root() as before:
        child = spawn.Process(target=os.getpid)
        child.start()
    child.join(DEADLINE_S)

    assert child.exitcode == 0
    assert before == os.getcwd() == str(folder)
    assert ran(folder) == []
    careless = spawn.Process(target=os.getpid)
    careless.start()
    careless.join(DEADLINE_S)
    assert ran(folder)


def test_python_is_started_in_one_way() -> None:
    """Only `ampmon.system.interpreter` builds a Python command, and only the workers' module spawns processes."""
    sources = [*(ROOT / "ampmon").rglob("*.py"), *(ROOT / "server").rglob("*.py")]
    starts = {
        str(path.relative_to(ROOT))
        for path in sources
        if re.search(r"\[\s*sys\.executable|exec\(\s*sys\.executable", path.read_text())
    }
    spawns = {path.name for path in sources if "get_context(" in path.read_text()}

    assert starts == {"ampmon/system/interpreter.py"}
    assert spawns == {"workers.py"}
