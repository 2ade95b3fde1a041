"""Runs the servers of other tools as their users start them, on a folder with the data they serve."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import urllib3

from benchmarks.server import free_port


WITHIN_S = 60.0
TRACKIO_TOKEN = "benchmark"

_TRACKIO = "import sys, trackio; trackio.show(open_browser=False, block_thread=True, server_port=int(sys.argv[1]))"


@contextmanager
def tensorboard(directory: Path, *options: str) -> Iterator[str]:
    """Run `tensorboard --logdir` with more options, and yield its address."""
    port = free_port()
    command = ["tensorboard.main", "--logdir", str(directory), "--port", str(port)]
    with _running(["-m", *command, *options], directory, port, "data/environment") as url:
        yield url


@contextmanager
def mlflow(directory: Path) -> Iterator[str]:
    """Run `mlflow server` on SQLite, its default, with one worker, and yield its address."""
    port = free_port()
    store = f"sqlite:///{directory / 'mlflow.db'}"
    command = ["mlflow", "server", "--backend-store-uri", store, "--port", str(port)]
    with _running(["-m", *command, "--workers", "1"], directory, port, "health") as url:
        yield url


@contextmanager
def trackio(directory: Path) -> Iterator[str]:
    """Run trackio's dashboard, which also ingests what other machines log, and yield its address."""
    port = free_port()
    with _running(["-c", _TRACKIO, str(port)], directory, port, "version") as url:
        yield url


@contextmanager
def _running(arguments: Sequence[str], directory: Path, port: int, path: str) -> Iterator[str]:
    """Run a server until exit, and yield its address once it answers at ``path``. Raises TimeoutError."""
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=directory,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "TRACKIO_WRITE_TOKEN": TRACKIO_TOKEN},
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(f"{url}/{path}", process)
        yield url
    finally:
        # Its whole session, because children of some servers would outlive it.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    http = urllib3.PoolManager(retries=False)
    until = time.monotonic() + WITHIN_S
    while time.monotonic() < until and process.poll() is None:
        try:
            if http.request("GET", url, timeout=5).status == 200:
                return
        except urllib3.exceptions.HTTPError:
            pass
        time.sleep(0.1)
    raise TimeoutError(f"{url} does not answer (exit status {process.poll()})")
