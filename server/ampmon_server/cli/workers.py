"""Runs several server processes on one listening socket: starts, replaces and stops them."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from typing import Any, TypeAlias

from ampmon.system import interpreter
from ampmon_server.http.process import END_SECONDS, KEEP_ALIVE_SECONDS, ServerProcess, in_a_terminal
from ampmon_server.settings import Settings


Serve: TypeAlias = Callable[[Settings, socket.socket, Any, str], None]
"""The main function of a worker: its settings, its listener, its end of the pipe, and its working directory."""


KILL_SECONDS = END_SECONDS + 1
"""A worker that has not stopped after this long is killed."""
START_SECONDS = 60
"""A replacement must serve within this time, or the old worker stays."""
_SOON_S = 5.0
"""A worker that dies this soon after its start is replaced after a pause, which grows each time."""
_PAUSE_S, _PAUSE_MAX_S = 0.5, 30.0
_LOOK_S = 0.05

_log = logging.getLogger(__name__)
# Not forked: the parent has an open database, whose connections a fork would share.
_spawn = multiprocessing.get_context("spawn")


class _Stopped(Exception):
    """A signal asked to stop."""


@dataclass(frozen=True, slots=True)
class _Worker:
    """A process and a pipe. The worker reports on it that it serves, and is told on it to hand over."""

    process: SpawnProcess
    line: Any  # its class depends on the system
    began: float = field(default_factory=time.monotonic)

    def serves(self) -> bool:
        """Whether the worker has reported that it serves. Reading consumes the report, so True is returned once."""
        with suppress(EOFError):
            return bool(self.line.poll() and self.line.recv())
        return False


class Workers:
    """A context that runs ``count`` server processes. `keep` blocks until a signal asks to stop."""

    def __init__(
        self, serve: Serve, settings: Settings, listener: socket.socket, count: int
    ) -> None:
        self._serve = serve
        self._settings = settings
        self._listener = listener
        self._count = count
        self._running: dict[int, _Worker] = {}
        self._pause = _PAUSE_S
        # Python goes on waiting after a signal's handler, so the handlers write to a waited pipe.
        self._signals, self._sender = _spawn.Pipe(duplex=False)
        self._renewal = False

    def __enter__(self) -> Workers:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self._sender.send(True))
        if sys.platform != "win32" and not in_a_terminal():
            signal.signal(signal.SIGHUP, lambda *_: self._sender.send(False))
        for _ in range(self._count):
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        processes = [worker.process for worker in self._running.values()]
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + self._settings.drain_seconds + KILL_SECONDS
        for process in processes:
            process.join(max(deadline - time.monotonic(), 0))
            _end(process)

    def keep(self) -> None:
        """Replace workers that die, and on SIGHUP all workers in turn. Blocks until a signal asks to stop."""
        with suppress(_Stopped):
            while True:
                for sentinel in self._wait(self._running):
                    self._replace(sentinel)
                if self._renewal:
                    self._renew()

    def _wait(self, sentinels: Iterable[int], seconds: float | None = None) -> list[int]:
        """Return the sentinels of ended processes, none after a timeout or SIGHUP. Raises _Stopped."""
        ready = wait([self._signals, *sentinels], seconds)
        if self._signals in ready:
            if self._signals.recv():
                raise _Stopped
            self._renewal = True
        return [each for each in ready if isinstance(each, int)]

    def _replace(self, sentinel: int) -> None:
        worker = self._running.pop(sentinel)
        worker.process.join()
        if time.monotonic() - worker.began > _SOON_S:
            self._pause = _PAUSE_S
        _log.warning(
            "ampmon serve: worker %d ended (%s); another takes its place",
            worker.process.pid,
            worker.process.exitcode,
        )
        self._wait((), self._pause)
        self._pause = min(2 * self._pause, _PAUSE_MAX_S)
        self._start()

    def _renew(self) -> None:
        """Replace each worker once its successor serves. If a successor does not start, keep the remaining workers."""
        self._renewal = False
        before = list(self._running.items())
        for sentinel, old in before:
            new = self._start()
            if not self._until(new.serves, new.process.sentinel, START_SECONDS):
                _end(self._running.pop(new.process.sentinel).process)
                _log.error("ampmon serve: the new worker does not start: the old ones keep serving")
                return
            with suppress(OSError):  # the old worker has died meanwhile
                old.line.send(None)
            self._until(lambda: False, sentinel, KEEP_ALIVE_SECONDS + KILL_SECONDS)
            _end(self._running.pop(sentinel).process)
        _log.info("ampmon serve: %d workers were replaced, one after the other", len(before))

    def _until(self, done: Callable[[], bool], sentinel: int, seconds: float) -> bool:
        """Wait until ``done``, the end of the process or a timeout. Return whether it is done. Raises _Stopped."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if done():
                return True
            if self._wait([sentinel], _LOOK_S):
                break
        return False

    def _start(self) -> _Worker:
        line, other = _spawn.Pipe()
        with interpreter.at_root() as folder:
            work = (self._settings, self._listener, other, folder)
            process = _spawn.Process(target=self._serve, args=work, name="ampmon-worker")
            process.start()
        other.close()
        worker = self._running[process.sentinel] = _Worker(process, line)
        return worker


def _end(process: SpawnProcess) -> None:
    if process.is_alive():
        process.kill()
    process.join()


def end_when_replaced(process: ServerProcess, line: Any) -> None:
    """Stop the worker when another has replaced it, or when the parent process has ended for any reason."""
    with suppress(EOFError, OSError):
        line.recv()
        process.hand_over()
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
