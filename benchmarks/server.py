"""A real server for a benchmark to send to. Knows nothing of what is sent."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


STOP_S = 60.0
"""Seconds in which a server must stop: they only end a hang."""


@contextmanager
def serving(directory: Path, *arguments: str) -> Iterator[tuple[str, str]]:
    """Address and token of `ampmon serve` on the data directory given; ended, and waited for, on the way out."""
    with started(directory, *arguments) as (url, token, _):
        yield url, token


@contextmanager
def started(
    directory: Path,
    *arguments: str,
    module: str = "ampmon_server.cli",
    env: Mapping[str, str] | None = None,
) -> Iterator[tuple[str, str, int]]:
    """The same, and the number of the server's process; ``module`` is run in place of `ampmon`."""
    command = [_python(), "-m", module, "serve", "--port", "0", *arguments]
    process = subprocess.Popen(
        [*command, "--data-dir", str(directory)], stdout=subprocess.PIPE, text=True, env=env
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().split()[3].partition("/login")[0]
        yield url, (directory / "token").read_text().strip(), process.pid
    finally:
        process.terminate()
        process.wait(STOP_S)
        process.stdout.close()


def free_port() -> int:
    """A port of the loopback interface that nothing listens on now."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port: int = opened.getsockname()[1]
        return port


def _python() -> str:
    """Python as ampmon's users have it: not with what other tools have brought into the environment above it."""
    below = Path(sys.prefix).parent / "bin" / "python"
    return str(below) if (below.parents[1] / "pyvenv.cfg").exists() else sys.executable
