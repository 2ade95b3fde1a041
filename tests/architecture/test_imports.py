"""What is loaded by what: a trainer loads no web service, a dashboard host needs no torch. Seen in fresh processes."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

import pytest


SERVICE = ("ampmon_server", "fastapi", "pydantic", "sqlalchemy", "starlette", "uvicorn", "plotly")


def loaded_by(statements: str, names: tuple[str, ...]) -> set[str]:
    """Those of the modules ``names`` that a fresh interpreter has loaded after ``statements``."""
    return {*names} & modules_after(statements)


@cache
def modules_after(statements: str) -> frozenset[str]:
    program = f"{statements}\nimport json, sys\nprint(json.dumps([*sys.modules]))"
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    return frozenset(json.loads(answer.stdout.splitlines()[-1]))


def test_the_scaler_loads_no_service() -> None:
    """Importing ampmon and touching its scaler loads none of what the server is made of."""
    assert loaded_by("import ampmon; ampmon.GradScaler", SERVICE) == set()


@pytest.mark.parametrize(
    "module",
    [
        "ampmon",
        "ampmon.wire",
        "ampmon.formats",
        "ampmon.histogram",
        "ampmon.config",
        "ampmon.spool",
        "ampmon.transport",
        "ampmon.sender",
        "ampmon_server.app",
        "ampmon_server.cli",
    ],
)
def test_what_a_host_without_torch_runs_loads_no_torch(module: str) -> None:
    """The wire, the sender, the server and the command line run where there is no torch."""
    assert loaded_by(f"import {module}", ("torch",)) == set()


@pytest.mark.parametrize(
    ("statements", "name"),
    [
        ("import ampmon; ampmon.GradScaler; import fastapi", "fastapi"),
        ("import ampmon; ampmon.GradScaler", "torch"),
    ],
)
def test_the_check_can_fail(statements: str, name: str) -> None:
    """A module that is loaded is reported as loaded: the tests above do not pass by looking away."""
    assert loaded_by(statements, (name,)) == {name}
