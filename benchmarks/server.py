"""Runs a real server for a benchmark. Independent of what is sent to it."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


STOP_S = 60.0
"""Seconds within which a server must stop. Only a hang takes so long."""


@contextmanager
def serving(
    directory: Path,
    *arguments: str,
    module: str = "ampmon_server.cli",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Iterator[tuple[str, str, int]]:
    """Run `ampmon serve` on a data directory, and yield its address, token and process id. Stop it and wait on exit.

    ``module`` runs in place of `ampmon`.
    """
    command = [_python(), "-m", module, "serve", "--port", "0", *arguments]
    process = subprocess.Popen(
        [*command, "--data-dir", str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        env=env,
        cwd=cwd,
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
    """A loopback port on which nothing listens now."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port: int = opened.getsockname()[1]
        return port


def _python() -> str:
    """ampmon's own Python, without the packages of the other tools, whose environment lies inside ampmon's."""
    below = Path(sys.prefix).parent / "bin" / "python"
    return str(below) if (below.parents[1] / "pyvenv.cfg").exists() else sys.executable
