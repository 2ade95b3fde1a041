"""Runs processes of a benchmark. Each prints when it is ready, ends when its input does, and then prints its counts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def working(module: str, *arguments: str) -> Iterator[tuple[str, list[str]]]:
    """Run a module. Yield the line it prints when ready, and a list that gets its counts on exit."""
    command = [sys.executable, "-m", module, *arguments]
    counted: list[str] = []
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ready = process.stdout.readline().strip()
        if not ready:
            raise ConnectionError(f"{module} did not come up")
        try:
            yield ready, counted
        finally:
            process.stdin.close()
            counted.append(process.stdout.readline())
