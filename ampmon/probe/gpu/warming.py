"""Does on a thread what training shall not wait for, such as compiling kernels. Knows not what it is."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar


T = TypeVar("T")


class Warmer(Generic[T]):
    """Jobs on a thread of their own, each once and one after the other. Waits for nothing.

    The interpreter's exit waits for the job under way and drops the others. A forked child begins again with the job
    that was under way, if it asks for one.
    """

    def __init__(self) -> None:
        self._asked: set[Hashable] = set()
        self._ended: dict[Hashable, T | Exception] = {}
        self._waiting: deque[tuple[Hashable, Callable[[], T]]] = deque()
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is under way or waits."""
        return bool(self._waiting)

    def made(self, key: Hashable, job: Callable[[], T]) -> T | None:
        """The job's result; None until it has ended. The first call starts it. Its error is raised once, and the next
        call starts the job again.
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
                # Torch's own threads, which may be the first to ask, are daemons, and would make it one too.
                self._thread = threading.Thread(
                    target=self._work, name="ampmon-kernels", daemon=False
                )
                self._thread.start()
            except RuntimeError:  # no more threads, or the interpreter is ending
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
