"""`ampmon` in processes of their own that begin quickly: forked from one that has loaded what a server needs."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ampmon_server.cli import main, workers
from waiting import DEADLINE_S


_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(
    [
        "alembic.autogenerate",
        "ampmon_server.app",
        "ampmon_server.cli.serve",
        "anyio._backends._asyncio",
        "sqlalchemy.dialects.sqlite",
        "uvicorn.lifespan.on",
        "uvicorn.loops.auto",
        "uvicorn.protocols.http.auto",
    ]
)


class Command:
    """A command of `ampmon` that runs, as `subprocess.Popen` has it.

    What it prints goes to the end of ``log``, and what it complains of too unless ``complaints`` is another file.
    The process calls ``before`` first; it must be picklable.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str] = os.environ,
        *,
        complaints: Path | None = None,
        before: Callable[[], object] | None = None,
    ) -> None:
        work = (arguments, (log, complaints or log), dict(environment), before)
        self._process = _forks.Process(target=_run, args=work)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("ampmon", timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def completed(
    arguments: Sequence[str],
    timeout: float = DEADLINE_S,
    environment: Mapping[str, str] = os.environ,
) -> subprocess.CompletedProcess[str]:
    """A command of `ampmon`, run to its end. Raises TimeoutExpired."""
    with tempfile.TemporaryDirectory() as folder:
        log, complaints = Path(folder) / "log", Path(folder) / "complaints"
        command = Command(arguments, log, environment, complaints=complaints)
        try:
            code = command.wait(timeout)
        finally:
            command.kill()
        told = log.read_text(), complaints.read_text()
    return subprocess.CompletedProcess(["ampmon", *arguments], code, *told)


def fork_workers() -> None:
    """Have the workers of this process forked from one that it starts: a ``before`` for `serve --workers`."""
    workers._spawn = _forks  # type: ignore[assignment]


def _run(
    arguments: Sequence[str],
    logs: tuple[Path, Path],
    environment: Mapping[str, str],
    before: Callable[[], object] | None,
) -> None:
    files = [os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) for log in logs]
    for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), *files)):
        os.dup2(file, number)
    # A shell starts background jobs with SIGINT ignored, and every descendant would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    if before is not None:
        before()
    sys.exit(main(arguments))
