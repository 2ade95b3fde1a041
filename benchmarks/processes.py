"""Runs processes of a benchmark: for one function, or until their input ends.

Those of modules print when they are ready, and at the end their counts.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TypeVar


T = TypeVar("T")

END_S = 60.0
"""Seconds within which a process must end. Only a hang takes so long."""


def apart(work: Callable[..., T], *arguments: object) -> T:
    """Call a function in a new process, and return its result."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(work, *arguments).result()


@dataclass
class Worker:
    """A running process. ``ready`` is its first line, and ``counted`` its last one, which is known after its end."""

    process: subprocess.Popen[str]
    ready: str = ""
    counted: str = ""

    def read(self) -> str:
        """The next line it prints. Blocks, and raises RuntimeError if it ends instead."""
        assert self.process.stdout is not None
        if line := self.process.stdout.readline():
            return line
        raise RuntimeError(f"{self.process.args!r} ended too early")

    def say(self, line: str) -> None:
        """Write a line to its input."""
        print(line, file=self.process.stdin, flush=True)


@contextmanager
def working(module: str, *arguments: object, killed: bool = False) -> Iterator[Worker]:
    """Run a module, ready on entry. On exit, end it and wait for it, or kill it at once if it is to be ``killed``.

    Raises RuntimeError if it failed.
    """
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", module, *map(str, arguments)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        worker = Worker(process)
        try:
            worker.ready = worker.read().strip()
            yield worker
            if not killed:
                process.stdin.close()
                worker.counted = process.stdout.readline()
                if process.wait(END_S):
                    raise RuntimeError(f"{module} ended with {process.returncode}")
        finally:
            process.kill()
