"""Python scripts in processes that start fast, because they are forked from one that has imported torch.

A script has its own `__main__`, arguments, environment and files, and imports ampmon itself. At its end its threads
are joined and `atexit` runs, but modules are not torn down: that took 0.2 s of processor time, mostly for modules of
the forker. `warm.py` starts `ampmon` itself in the same way.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

from waiting import DEADLINE_S


ROOT = Path(__file__).parents[1]
PRELOAD = "torch._dynamo"
"""What every optimizer imports, including Triton. It takes as long again as torch itself."""


class Script:
    """A running `python ARGUMENTS`, with the methods of `subprocess.Popen` that tests use.

    ``arguments`` begin with `-c` and a program, `-m` and a module, or a file. Output goes to this process's output by
    default. ``preload`` lists modules, separated by commas, to import before the fork, or functions ("module:function")
    to call. Thread-safe.
    """

    def __init__(
        self,
        *arguments: str,
        stdin: int | None = None,
        stdout: IO[str] | int = 1,
        stderr: IO[str] | int = 2,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        preload: str = PRELOAD,
    ) -> None:
        self.arguments = arguments
        self.returncode: int | None = None
        self.stdout: IO[str] | None = None
        reports, report = os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        ours = [report, null]
        if stdout == subprocess.PIPE:
            end, stdout = os.pipe()
            self.stdout = os.fdopen(end)
            ours.append(stdout)
        files = [each if isinstance(each, int) else each.fileno() for each in (stdout, stderr)]
        order = [arguments, dict(os.environ if env is None else env), str(cwd or Path.cwd())]
        given = [null if stdin is None else stdin, *files, report]
        with _LOCK:
            _start(_forker(preload), json.dumps(order).encode(), given)
        for each in ours:
            os.close(each)
        self._reports = os.fdopen(reports)
        self.pid = int(self._reports.readline())

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = DEADLINE_S) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.arguments, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, within_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._reports], [], [], within_s)[0]:
            self.returncode = int(self._reports.readline())
            self._reports.close()
        return self.returncode

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()
        if self.stdout is not None:
            self.stdout.close()


def run(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    check: bool = True,
    preload: str = PRELOAD,
) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` to its end without a timeout; pytest's own timeout ends a hang.

    Raises AssertionError with the script's output if ``check`` is set and the exit status is not 0.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with Script(
            *arguments, stdout=out, stderr=err, env=env, cwd=cwd, preload=preload
        ) as script:
            code = script.wait(None)
        out.seek(0)
        err.seek(0)
        done = subprocess.CompletedProcess([*arguments], code, out.read(), err.read())
    assert not check or code == 0, f"exit status {code}\n{done.stdout}\n{done.stderr}"
    return done


_LOCK = threading.Lock()


@cache
def _forker(preload: str) -> socket.socket:
    """A connection to the process that has imported ``preload``. That process ends when the connection is closed."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, __file__, preload, str(theirs.fileno())]
        # One thread, because a fork copies no other.
        threads = {f"{of}_NUM_THREADS": "1" for of in ("OMP", "MKL", "OPENBLAS")}
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        forker = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            cwd=Path(__file__).parent,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **threads, "PYTHONPATH": path},
        )

    def end() -> None:
        ours.close()
        forker.wait()

    atexit.register(end)
    return ours


def _start(forker: socket.socket, order: bytes, files: list[int]) -> None:
    socket.send_fds(forker, [len(order).to_bytes(4, "big")], files)
    forker.sendall(order)


def _fork(orders: socket.socket) -> Any:
    """Fork a process per order. Returns the order in each forked process; the forker itself never returns."""
    reports: dict[int, int] = {}

    def reap(*_: object) -> None:
        # The next signal may interrupt this call, whose children the inner one has then reaped.
        with suppress(ChildProcessError):
            while reports and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                with os.fdopen(reports.pop(ended[0]), "w") as report:
                    print(os.waitstatus_to_exitcode(ended[1]), file=report)

    signal.signal(signal.SIGCHLD, reap)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        size, files, _, _ = socket.recv_fds(orders, 4, 4)
        if not size:
            os._exit(0)
        order = orders.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        if not (pid := os.fork()):
            _take(files, [orders.fileno(), *reports.values()])
            return json.loads(order)
        os.write(files[3], f"{pid}\n".encode())
        reports[pid] = files[3]
        for file in files[:3]:
            os.close(file)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def _take(files: list[int], others: list[int]) -> None:
    """Make ``files`` the standard streams, close the forker's files and restore the default signal handlers."""
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    for file in (*files, *others):
        os.close(file)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def _end(code: int) -> None:
    """Do what an interpreter does at exit, except tearing down modules."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        if file is not None and not file.closed:
            file.flush()
    os._exit(code)


def _become(arguments: list[str], environment: dict[str, str], cwd: str) -> None:
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    how, *rest = arguments
    sys.path[0] = "" if how.startswith("-") else str(Path(how).parent)
    sys.argv[:] = arguments if how != "-c" else ["-c", *rest[1:]]
    if how == "-m":
        sys.argv[:] = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    main = types.ModuleType("__main__")
    source = rest[0] if how == "-c" else Path(how).read_text()
    if how != "-c":
        main.__file__ = how
    sys.modules["__main__"] = main
    exec(compile(source, "<string>" if how == "-c" else how, "exec"), main.__dict__)


if __name__ == "__main__":
    for needed in ("numpy", *sys.argv[1].split(",")):
        module, _, function = needed.partition(":")
        found = importlib.import_module(module)
        if function:
            getattr(found, function)()
    gc.freeze()  # otherwise a fork that ends would visit every object and copy nearly all memory
    order = _fork(socket.socket(fileno=int(sys.argv[2])))
    status = 0
    try:
        _become(*order)
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        status = ended.code or 0
    _end(status)
