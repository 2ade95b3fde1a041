"""`ampmon` commands that start fast, because they are forked from a process with a server's imports."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts import Script, run


_IMPORTS = (
    "alembic.autogenerate",
    "ampmon_server.http.app",
    "ampmon_server.cli.serve",
    "anyio._backends._asyncio",
    "sqlalchemy.dialects.sqlite",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
)
_PRELOAD = ",".join(_IMPORTS)
_MAIN = "import sys; from ampmon_server.cli import main; sys.exit(main())"
FORK_WORKERS = f"""
import multiprocessing
from ampmon_server.cli import workers
workers._spawn = multiprocessing.get_context("forkserver")
workers._spawn.set_forkserver_preload({_IMPORTS})
"""
"""A ``before`` for `start`: makes `serve --workers` fork its workers from a separate process."""


def start(
    arguments: Sequence[str],
    log: Path,
    environment: Mapping[str, str] = os.environ,
    *,
    before: str = "",
    preload: str = "",
) -> Script:
    """Start `ampmon ARGUMENTS` after running the code ``before``. Output and errors are appended to ``log``.

    ``preload`` names one more module to import before the fork.
    """
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY, 0o600)
    try:
        return Script(
            "-c",
            f"{before}\n{_MAIN}",
            *arguments,
            stdout=output,
            stderr=output,
            env=environment,
            preload=f"{_PRELOAD},{preload}".rstrip(","),
        )
    finally:
        os.close(output)


def completed(
    arguments: Sequence[str], environment: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess[str]:
    return run("-c", _MAIN, *arguments, env=environment, check=False, preload=_PRELOAD)
