"""Does on a thread what training shall not wait for, such as compiling kernels. Knows not what it is."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable


class Warmer:
    """Jobs on a thread of their own, each once and one after the other. Waits for nothing.

    The interpreter's exit waits for the job under way and drops the others: a thread that is stopped within a
    compiler aborts the process. A forked child begins again with the job that was under way, if it asks for one.
    """

    def __init__(self) -> None:
        self._asked: set[Hashable] = set()
        self._ended: dict[Hashable, Exception | None] = {}
        self._waiting: deque[tuple[Hashable, Callable[[], None]]] = deque()
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is under way or waits."""
        return bool(self._waiting)

    def done(self, key: Hashable, job: Callable[[], None]) -> bool:
        """Whether the job is done; it is begun otherwise. Raises what it raised."""
        if key in self._ended:
            if (error := self._ended[key]) is not None:
                raise RuntimeError(str(error)) from error
            return True
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
        return False

    def _work(self) -> None:
        while self._waiting and threading.main_thread().is_alive():
            key, job = self._waiting[0]
            try:
                job()
                self._ended[key] = None
            except Exception as error:
                self._ended[key] = error
            self._waiting.popleft()
