"""Starts processes quickly: forks them from one that has loaded what they need.

`main` calls its targets ("module:function"), then forks a child for each order it reads.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ampmon.identity.process import start_time
from scripts import Script
from waiting import DEADLINE_S


ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
sys.path[:0] = {paths}
from campaigns.soak import nursery
nursery.main({warm})
"""
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_POLL_S = 0.002


class Child:
    """A process that a nursery forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._started = start_time(pid)

    def alive(self) -> bool:
        return self._started is not None and start_time(self.pid) == self._started

    def kill(self) -> bool:
        """Kill it and wait. Return whether it was still alive."""
        there = self.signal(signal.SIGKILL)
        self.wait(DEADLINE_S)
        return there

    def signal(self, number: int) -> bool:
        """Send a signal. Return whether it was alive."""
        if not self.alive():
            return False
        os.kill(self.pid, number)
        return True

    def wait(self, within_s: float) -> bool:
        """Wait, and return whether it ended within ``within_s`` seconds, with everything that its threads held."""
        end = time.monotonic() + within_s
        # The main thread may be a zombie while others still run. The /proc entry exists until all are gone.
        while os.path.exists(f"/proc/{self.pid}"):
            if time.monotonic() > end:
                return False
            time.sleep(_POLL_S)
        return True


class Nursery:
    """Forks children, after `wait`, from a process that has called each of ``warm``, a "module:function".

    Thread-safe.
    """

    def __init__(self, *warm: str) -> None:
        self._lock = threading.Lock()
        # One thread, because a fork copies no other.
        threads = {f"{of}_NUM_THREADS": "1" for of in ("OMP", "MKL", "OPENBLAS")}
        program = PROGRAM.format(paths=[str(ROOT / "tests"), str(ROOT)], warm=warm)
        orders, given = os.pipe()
        self._orders = os.fdopen(given, "w")
        self._process = Script(
            *("-c", program), stdin=orders, stdout=subprocess.PIPE, env={**os.environ, **threads}
        )
        os.close(orders)

    def wait(self) -> None:
        """Wait until it has called ``warm``. Raises RuntimeError if that fails."""
        with self._lock:
            self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the nursery has ended")
        return answer

    def fork(
        self, target: str, log: Path, environment: Mapping[str, str], **arguments: Any
    ) -> Child:
        """Fork a child that calls ``target``, a "module:function", and exits with the code it returns.

        Its output goes to ``log``.
        """
        order = {
            "target": target,
            "log": str(log),
            "environment": dict(environment),
            "arguments": arguments,
        }
        with self._lock:
            print(json.dumps(order), file=self._orders, flush=True)
            return Child(int(self._answer()))

    def close(self) -> None:
        """End it and all of its children."""
        with self._process, self._orders:
            pass


def main(targets: Sequence[str]) -> None:
    """Warm up, then fork a child for each order on stdin. Does not return in the children."""
    for target in targets:
        _find(target)()
    gc.freeze()
    print("warm", flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended children are reaped at once
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            sys.exit(_begin(order))
        print(pid, flush=True)


def _begin(order: dict[str, Any]) -> int | None:
    ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, source in enumerate((nothing, log, log)):
        os.dup2(source, number)
    os.environ.update(order["environment"])
    return _find(order["target"])(**order["arguments"])


def _find(target: str) -> Callable[..., int | None]:
    module, _, function = target.partition(":")
    found: Callable[..., int | None] = getattr(importlib.import_module(module), function)
    return found
