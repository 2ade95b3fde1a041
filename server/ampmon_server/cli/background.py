"""Starts a background server for `ampmon run` if none runs on the data directory. Training never waits for it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from typing import IO

from ampmon.config import RunOptions, answers, resolve, server_address
from ampmon.errors import ConfigurationError
from ampmon.identity.ids import rank_of_process
from ampmon.system import interpreter, private
from ampmon.system.installing import install
from ampmon_server.http.address import is_free
from ampmon_server.settings import DEFAULT_PORT


if sys.platform != "win32":
    import fcntl

IDLE_MINUTES = 60
"""The server stops after this long without training or page views: enough time to look at a finished run."""
LOG = "serve.log"
_NEEDED = ("fastapi", "sqlalchemy", "uvicorn")


def start() -> bool:
    """Start a server on the data directory and return True, unless one runs there or another one is named.

    Raises OSError.
    """
    try:
        options = resolve()
    except ConfigurationError:
        return False  # the training reports the error
    if options.mode != "online" or options.named or rank_of_process()[0] != 0:
        return False
    if answers(server_address(options.dir)):
        return False
    if not all(map(find_spec, _NEEDED)):
        print(
            f"ampmon run: no server runs on {options.dir}, and none is installed here: records wait in that directory. "
            f"Run {install('server')}, then ampmon serve",
            file=sys.stderr,
        )
        return False
    return _start(options)


def _start(options: RunOptions) -> bool:
    folder = private.directory(options.dir, "server")
    command = interpreter.command(
        "ampmon_server.cli",
        "serve",
        *("--data-dir", str(options.dir)),
        *("--port", str(DEFAULT_PORT if is_free(DEFAULT_PORT) else 0)),
        *("--stop-when-idle", str(IDLE_MINUTES)),
    )
    log = private.open_file(folder / LOG, os.O_WRONLY | os.O_CREAT)
    with open(log, "wb") as file:
        if not _claims(file):
            return False
        # Only once it is claimed: until then, it may be the log of another server.
        file.truncate(0)
        _detach(command, file.fileno())
    return True


def _claims(log: IO[bytes]) -> bool:
    """Lock the log, which the started server keeps open. Return False if another server is starting or stopping."""
    if sys.platform != "win32":
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            pass  # without file locks two servers may start, but only one gets the database
    return True


def _detach(command: list[str], log: int) -> None:
    """Start a program as an orphan, so that a launcher that waits for its own children does not wait for it."""
    if hasattr(os, "fork") and (child := os.fork()):
        os.waitpid(child, 0)
        return
    try:
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=interpreter.ROOT,
            start_new_session=True,
        )
    finally:
        if hasattr(os, "fork"):
            os._exit(0)
