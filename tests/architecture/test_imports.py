"""What is loaded by what: a trainer loads no web service, a dashboard host needs no torch. Seen in fresh processes."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

import scripts


SERVICE = ("ampmon_server", "fastapi", "pydantic", "sqlalchemy", "starlette", "uvicorn", "plotly")


WITHOUT_TORCH = (
    "ampmon",
    "ampmon.wire",
    "ampmon.numerics.formats",
    "ampmon.numerics.histogram",
    "ampmon.config",
    "ampmon.spool",
    "ampmon.transport",
    "ampmon.sender",
    "ampmon.launch",
    "ampmon.client.unchanged",
    "ampmon_server.http.app",
    "ampmon_server.cli.background",
    "ampmon_server.cli.commands",
)
REPORT = "\nimport json, sys\nprint(json.dumps([*sys.modules]))"


@cache
def in_a_trainer() -> frozenset[str]:
    """The modules that a process has loaded which imported torch, and then ampmon's scaler."""
    program = "import torch\nimport ampmon; ampmon.GradScaler" + REPORT
    return frozenset(json.loads(scripts.run("-c", program).stdout.splitlines()[-1]))


@cache
def on_a_host_without_torch() -> frozenset[str]:
    """The modules that a fresh interpreter has loaded which imported all that runs there."""
    program = f"import {', '.join(WITHOUT_TORCH)}" + REPORT
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    return frozenset(json.loads(answer.stdout.splitlines()[-1]))


def test_the_scaler_loads_no_service() -> None:
    """Importing ampmon and touching its scaler loads none of what the server is made of."""
    assert {*SERVICE} & in_a_trainer() == set()


def test_what_a_host_without_torch_runs_loads_no_torch() -> None:
    """The wire, the sender, the server and the command line, imported together, load no torch."""
    assert "torch" not in on_a_host_without_torch()


def test_the_check_can_fail() -> None:
    """A module that is loaded is reported as loaded: the tests above do not pass by looking away."""
    assert "torch" in in_a_trainer()
    assert {*WITHOUT_TORCH, "fastapi"} <= on_a_host_without_torch()
