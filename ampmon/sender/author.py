"""Whether the writer of a spool may still append to it, asked now and then; judged by silence where nobody knows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from ampmon.identity import Fate, ProcessIdentity
from ampmon.spool import claimant_of, last_changed, last_written, time_at
from ampmon.spool.tail import CLOSED


ASK_EVERY_S = 0.5
SILENT_S = 600.0
"""A spool that does not change for so long is given up by whoever cannot be asked: its writer, or who took it over."""
LINGER_S = 60.0
"""A living writer notices within so long that its spool was taken over: it looks each second, if through a cache."""


class Author:
    """The process that writes the spool at ``path``."""

    def __init__(
        self,
        path: Path,
        process: ProcessIdentity,
        clock: Callable[[], float],
        *,
        linger_s: float = LINGER_S,
    ) -> None:
        self._path = path
        self._process = process
        self._clock = clock
        self._asked_s = -ASK_EVERY_S
        self._settled_s = clock() + linger_s
        self._fate: Fate = "alive"
        self._over = False

    def is_over(self, *, asked_now: bool = False) -> bool:
        """Whether no record follows, by an answer of up to `ASK_EVERY_S` ago unless it is ``asked_now``.

        Does not raise: a spool that cannot be looked at is not over.
        """
        now_s = self._clock()
        if not self._over and (asked_now or now_s - self._asked_s >= ASK_EVERY_S):
            self._asked_s = now_s
            with contextlib.suppress(OSError):
                self._over = self._ask()
        return self._over

    def is_alive(self) -> bool:
        """Whether it was just seen running, with its spool open."""
        return self._fate == "alive" and not self._over

    def may_return(self) -> bool:
        """Whether it is not known to be gone: it was only silent for long."""
        return self._fate == "unknown"

    def _ask(self) -> bool:
        self._fate = self._process.fate()
        return self._fate == "gone" or is_closed(self._path) or self._is_given_up()

    def _is_given_up(self) -> bool:
        """Whether it cannot be asked, was silent for long, and had the time to see that its spool was taken over."""
        return (
            self._fate == "unknown"
            and self._clock() >= self._settled_s
            and claimant_of(self._path) is not None
            # Whoever took it over says by this, too, that it still is at it.
            and time_at(self._path) - last_written(self._path) >= SILENT_S
        )


def is_closed(path: Path) -> bool:
    """Whether the writer of the spool at ``path`` said that no record follows. Raises OSError."""
    return (path / CLOSED).exists()


def is_silent(path: Path) -> bool:
    """Whether nobody wrote, sent or took over anything of the spool at ``path`` for long. Raises OSError."""
    return time_at(path.parent) - last_changed(path) >= SILENT_S
