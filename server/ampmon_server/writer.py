"""The threads that write: whoever has something to store waits in line, or is sent away when the line is long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar


WAITING_MAX = 256
"""Each waits with its batch, of a few kB where many send what has just happened. Fewer would leave writers idle while
those sent away wait to come again."""

Result = TypeVar("Result")


class LineTooLong(Exception):
    """Too many are waiting to write."""


class Writer:
    """Runs one function after another, or as many at a time as it has ``threads``, off the event loop."""

    def __init__(self, threads: int = 1) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="ampmon-writer")
        self._waiting = 0

    async def run(self, function: Callable[[], Result]) -> Result:
        """Its result, or what it raised. Raises LineTooLong, without running it, when too many wait."""
        if self._waiting >= WAITING_MAX:
            raise LineTooLong
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, function)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Finish what is under way, and take no more."""
        self._executor.shutdown(wait=True, cancel_futures=True)
