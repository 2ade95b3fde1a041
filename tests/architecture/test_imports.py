"""Imports, checked in fresh processes: a trainer loads no web service, and a server host no torch."""

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
    "ampmon_server.cli.launch",
    "ampmon.training.built",
    "ampmon.integrations.trackers",
    "ampmon_server.http.app",
    "ampmon_server.cli.background",
    "ampmon_server.cli.commands",
)
REPORT = "\nimport json, sys\nprint(json.dumps([*sys.modules]))"


@cache
def in_a_trainer() -> frozenset[str]:
    """The modules loaded in a process after it imports torch and ampmon's scaler."""
    program = "import torch\nimport ampmon; ampmon.GradScaler" + REPORT
    return frozenset(json.loads(scripts.run("-c", program).stdout.splitlines()[-1]))


@cache
def on_a_host_without_torch() -> frozenset[str]:
    """The modules loaded in a fresh interpreter after it imports everything that runs without torch."""
    program = f"import {', '.join(WITHOUT_TORCH)}" + REPORT
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    return frozenset(json.loads(answer.stdout.splitlines()[-1]))


def test_the_scaler_loads_no_service() -> None:
    """Importing ampmon and its scaler loads no package of the server."""
    assert {*SERVICE} & in_a_trainer() == set()


def test_what_a_host_without_torch_runs_loads_no_torch() -> None:
    """The wire, the sender, trackers, the server and the command line load no torch."""
    assert "torch" not in on_a_host_without_torch()


def test_the_check_can_fail() -> None:
    """A loaded module is reported, so the checks above can fail."""
    assert "torch" in in_a_trainer()
    assert {*WITHOUT_TORCH, "fastapi"} <= on_a_host_without_torch()
