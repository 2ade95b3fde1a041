"""Options come from arguments, then the environment, then defaults; a bad option raises an error that names it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ampmon.config import DEFAULT_URL, Config, resolve, unknown_variables
from ampmon.errors import ConfigurationError


ENVIRONMENT = {
    "AMPMON_URL": "http://monitor:9000/",
    "AMPMON_DIR": "/data/ampmon",
    "AMPMON_PROJECT": "vision",
    "AMPMON_NAME": "baseline",
    "AMPMON_RUN_ID": "01890a5d-ac96-774b-bcce-b302099a8057",
    "AMPMON_MODE": "offline",
    "AMPMON_TOKEN": "secret",
}


def test_the_environment_is_read() -> None:
    """Each AMPMON_ variable sets its option."""
    options = resolve(environment=ENVIRONMENT)
    assert (options.url, options.dir, options.project) == (
        "http://monitor:9000",
        Path("/data/ampmon"),
        "vision",
    )
    assert (options.name, options.mode, options.token) == ("baseline", "offline", "secret")
    assert options.run_id == UUID(ENVIRONMENT["AMPMON_RUN_ID"])


@pytest.mark.parametrize("name", ["AMPMON_DIR", "XDG_DATA_HOME"])
def test_the_data_directory_does_not_depend_on_the_working_directory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative directory is meant from where the process started, even if it changed its working directory."""
    monkeypatch.setattr("multiprocessing.process.ORIGINAL_DIR", str(tmp_path))
    monkeypatch.chdir("/")
    found = resolve(environment={name: "of/mine"}).dir
    assert found.is_relative_to(tmp_path / "of" / "mine")


def test_a_script_may_change_its_working_directory(tmp_path: Path) -> None:
    """A script that imports torch, then changes its folder, as Hydra does, has a relative directory where it began."""
    program = "import os, torch; os.chdir('/'); from ampmon.config import data_directory; print(data_directory())"

    # Not by `scripts`, whose processes are forked from one that began elsewhere.
    command, env = [sys.executable, "-c", program], {**os.environ, "AMPMON_DIR": "mine"}
    printed = subprocess.run(
        command, env=env, cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert Path(printed.stdout.strip()) == tmp_path / "mine"


def test_arguments_come_first(tmp_path: Path) -> None:
    """An argument overrides its variable."""
    options = resolve(
        name="mine", url="https://other", dir=tmp_path, mode="disabled", environment=ENVIRONMENT
    )
    assert (options.name, options.url, options.dir, options.mode) == (
        "mine",
        "https://other",
        tmp_path,
        "disabled",
    )


def test_everything_has_a_default() -> None:
    """Without arguments or variables, url, mode, project, directory and name have defaults."""
    options = resolve(environment={"XDG_DATA_HOME": "/x"})
    assert (options.url, options.mode, options.project) == (DEFAULT_URL, "online", "default")
    assert options.dir.name == "ampmon"
    assert options.name


def test_a_variable_that_nobody_reads_is_reported_with_the_nearest() -> None:
    """Misspelt AMPMON_ variables are listed with the nearest known name; those that Kubernetes sets are ignored."""
    of_kubernetes = ("SERVICE_HOST", "SERVICE_PORT_HTTP", "PORT", "PORT_8267_TCP_ADDR")
    environment = {**ENVIRONMENT, **{f"AMPMON_{name}": "x" for name in of_kubernetes}, "PATH": "/"}
    assert unknown_variables(environment) == []
    misspelt = {"AMPMON_PROJEKT": "x", "AMPMON_RUNID": "x"}
    assert unknown_variables(misspelt) == [
        ("AMPMON_PROJEKT", "AMPMON_PROJECT"),
        ("AMPMON_RUNID", "AMPMON_RUN_ID"),
    ]


def test_the_address_of_a_page_names_its_server() -> None:
    """The address in a browser's bar, with the page's part after `#`, is the server's address without that part."""
    assert resolve(url=f"{DEFAULT_URL}/#/runs/01a2", environment={}).url == DEFAULT_URL


@pytest.mark.parametrize("script", ["-", "", "-c"])
def test_a_program_without_a_file_is_called_python(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run of a script from standard input, of `python -c` or of a prompt has the name "python"."""
    monkeypatch.setattr(sys, "argv", [script])
    assert resolve(environment={}).name == "python"


def test_names_are_made_printable() -> None:
    """Control characters in a name become spaces, and it is cut at 256 characters."""
    assert resolve(name="a\x1bb" + "c" * 300, environment={}).name == "a b" + "c" * 253


@pytest.mark.parametrize("name", ["\u200b", " \u3164\u2800", "\ufe0f"])
def test_a_name_that_nobody_sees_is_replaced(name: str) -> None:
    """An invisible name becomes "unnamed", because the server would reject it and every record of the run."""
    assert resolve(name=name, environment={}).name == "unnamed"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"url": "monitor:9000"}, "AMPMON_URL"),
        ({"mode": "sometimes"}, "AMPMON_MODE"),
        ({"run_id": "seven"}, "AMPMON_RUN_ID"),
        ({"resume_step": -1}, "resume_step"),
    ],
)
def test_bad_options_are_refused_by_name(arguments: dict[str, Any], named: str) -> None:
    """An invalid option raises a ConfigurationError that names it."""
    with pytest.raises(ConfigurationError, match=named):
        resolve(**arguments, environment={})


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"every": 0}, "every"),
        ({"every": True}, "every"),
        ({"budget": 0.0}, "budget"),
        ({"budget": float("nan")}, "budget"),
        ({"sample": 8}, "sample"),
        ({"activations": -1}, "activations"),
        ({"ranks": (-1,)}, "ranks"),
    ],
)
def test_bad_measurements_are_refused_by_name(arguments: dict[str, Any], named: str) -> None:
    """An invalid Config value raises a ConfigurationError that names it."""
    with pytest.raises(ConfigurationError, match=named):
        Config(**arguments)
