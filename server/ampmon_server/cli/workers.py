"""Several server processes on one listening socket: starts them, replaces who dies, ends all. Serves nothing itself."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from types import FrameType

from ampmon_server import logs
from ampmon_server.auth import KeyProblem
from ampmon_server.process import STOP_SECONDS, Process
from ampmon_server.service import Service
from ampmon_server.settings import Settings
from ampmon_server.store import Unusable


KILL_SECONDS = STOP_SECONDS + 2
"""After so long who was asked to stop is killed."""
_SOON_S = 5.0
"""Who dies within so long after its start is replaced after a pause, each time a longer one."""
_PAUSE_S, _PAUSE_MAX_S = 0.5, 30.0
_CANNOT_START = 2

_log = logging.getLogger(__name__)
_spawn = multiprocessing.get_context("spawn")


class Workers:
    """A context in which so many processes serve; `keep` stays until a signal says stop."""

    def __init__(self, settings: Settings, listener: socket.socket, count: int) -> None:
        self._work = (settings, listener)
        self._count = count
        self._running: dict[int, tuple[SpawnProcess, float]] = {}
        self._pause = _PAUSE_S
        self._stop, self._told = _spawn.Pipe(duplex=False)

    def __enter__(self) -> Workers:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        for _ in range(self._count):
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        processes = [process for process, _ in self._running.values()]
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + KILL_SECONDS
        for process in processes:
            process.join(max(deadline - time.monotonic(), 0))
            if process.is_alive():
                process.kill()
                process.join()

    def keep(self) -> None:
        """Replace whoever dies, until a signal comes."""
        while True:
            ready = wait([self._stop, *self._running])
            if self._stop in ready:
                return
            for sentinel in ready:
                if isinstance(sentinel, int) and self._replace(sentinel):
                    return

    def _replace(self, sentinel: int) -> bool:
        """Start another in place of one that died; whether a signal came meanwhile."""
        process, began = self._running.pop(sentinel)
        process.join()
        if time.monotonic() - began > _SOON_S:
            self._pause = _PAUSE_S
        _log.warning(
            "ampmon serve: worker %d ended (%s); another takes its place",
            process.pid,
            process.exitcode,
        )
        if self._stop.poll(self._pause):
            return True
        self._pause = min(2 * self._pause, _PAUSE_MAX_S)
        self._start()
        return False

    def _start(self) -> None:
        process = _spawn.Process(target=_serve, args=self._work, name="ampmon-worker")
        process.start()
        self._running[process.sentinel] = process, time.monotonic()

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._told.send(number)


def _serve(settings: Settings, listener: socket.socket) -> None:
    """What a worker does."""
    logs.set_up(settings.log_format)
    try:
        service = Service.open(settings)
    except (KeyProblem, Unusable) as problem:
        print(f"ampmon serve: {problem}", file=sys.stderr, flush=True)
        sys.exit(_CANNOT_START)
    threading.Thread(target=_end_with_parent, name="ampmon-parent", daemon=True).start()
    try:
        Process(service).run(sockets=[listener])
    finally:
        service.close()


def _end_with_parent() -> None:
    """Stop when the process is gone that would stop us, however it ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
