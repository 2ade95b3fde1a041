"""Starts processes of campaigns quickly, like `scripts.py`. They are killed when the campaign's own process ends."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts import Script


ROOT = Path(__file__).parents[2]
DIES_WITH_PARENT = f"""
import ctypes, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
sys.path[:0] = {[str(ROOT / "tests"), str(ROOT)]}
"""
"""Code for the beginning of such a process. The parent is the process from which it is forked."""
PROGRAM = f"""{DIES_WITH_PARENT}
import importlib, json
module, function, arguments = json.loads(sys.argv[1])
sys.exit(getattr(importlib.import_module(module), function)(**arguments))
"""


def fork(target: str, log: Path, environment: Mapping[str, str], **arguments: Any) -> Script:
    """Start a process that calls ``target``, a "module:function", and exits with the code it returns.

    It is forked from a process that has called the module's `warm`. Its output goes to ``log``.
    """
    module, _, function = target.partition(":")
    with log.open("a") as output:
        return Script(
            *("-c", PROGRAM, json.dumps([module, function, arguments])),
            stdout=output,
            stderr=output,
            env={**os.environ, **environment},
            preload=f"{module}:warm",
        )


def killed(process: Script) -> bool:
    """Kill a process and wait. Return whether it was still alive."""
    process.kill()
    return process.wait() == -signal.SIGKILL
