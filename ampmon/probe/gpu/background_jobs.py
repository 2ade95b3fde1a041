"""Runs slow work, such as compiling kernels, on a background thread, so training never waits for it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar


T = TypeVar("T")


class BackgroundJobs(Generic[T]):
    """Runs jobs on its own thread, each once and one after the other. Callers never wait.

    The interpreter's exit waits for the running job and drops the others. A forked child restarts the job that was
    running, once it requests one.
    """

    def __init__(self) -> None:
        self._asked: set[Hashable] = set()
        self._ended: dict[Hashable, T | Exception] = {}
        self._waiting: deque[tuple[Hashable, Callable[[], T]]] = deque()
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is running or waiting."""
        return bool(self._waiting)

    def made(self, key: Hashable, job: Callable[[], T]) -> T | None:
        """Return the job's result, or None until it has ended. The first call starts it.

        The job's error is raised once, as a RuntimeError. The next call starts the job again.
        """
        ended = self._ended.get(key)
        if isinstance(ended, Exception):
            self._asked.discard(key)
            del self._ended[key]
            raise RuntimeError(str(ended)) from ended
        if ended is not None:
            return ended
        if key not in self._asked:
            self._asked.add(key)
            self._waiting.append((key, job))
        if self._thread is None or not self._thread.is_alive():
            try:
                # Explicitly no daemon: it would inherit that from torch's own threads, which may call this first.
                self._thread = threading.Thread(
                    target=self._work, name="ampmon-kernels", daemon=False
                )
                self._thread.start()
            except RuntimeError:  # no thread can start, or the interpreter is exiting
                self._thread = None
        return None

    def _work(self) -> None:
        while self._waiting and threading.main_thread().is_alive():
            key, job = self._waiting[0]
            try:
                self._ended[key] = job()
            except Exception as error:
                self._ended[key] = error
            self._waiting.popleft()
