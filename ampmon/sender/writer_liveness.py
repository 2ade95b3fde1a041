"""Whether a spool's writer may still append. If its process cannot be checked, silence decides."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from ampmon.identity import Fate, ProcessIdentity
from ampmon.spool import claimant_of, last_changed, last_written, time_at
from ampmon.spool.tail import CLOSED


ASK_EVERY_S = 0.5
SILENT_S = 600.0
"""A spool unchanged for this long counts as given up if its writer or claimant cannot be checked."""
LINGER_S = 60.0
"""Time in which a living writer notices a takeover of its spool. It checks every second, perhaps through a cache."""


class WriterLiveness:
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
        """Whether no record follows. Checks every `ASK_EVERY_S`, or if ``asked_now``. False for an unreadable spool."""
        now_s = self._clock()
        if not self._over and (asked_now or now_s - self._asked_s >= ASK_EVERY_S):
            self._asked_s = now_s
            with contextlib.suppress(OSError):
                self._over = self._ask()
        return self._over

    def is_alive(self) -> bool:
        """Whether the process was just seen running, with its spool open."""
        return self._fate == "alive" and not self._over

    def may_return(self) -> bool:
        """Whether the process cannot be checked, so it may only have been silent."""
        return self._fate == "unknown"

    def _ask(self) -> bool:
        self._fate = self._process.fate()
        return self._fate == "gone" or is_closed(self._path) or self._is_given_up()

    def _is_given_up(self) -> bool:
        """Whether the writer cannot be checked, was silent for long, and had time to notice a takeover of its spool."""
        return (
            self._fate == "unknown"
            and self._clock() >= self._settled_s
            and claimant_of(self._path) is not None
            # `time_at` also changes the spool, which shows others that the claimant is still at work.
            and time_at(self._path) - last_written(self._path) >= SILENT_S
        )


def is_closed(path: Path) -> bool:
    """Whether the writer marked the spool at ``path`` as closed. Raises OSError."""
    return (path / CLOSED).exists()


def is_silent(path: Path) -> bool:
    """Whether the spool at ``path`` was not written, sent or taken over for `SILENT_S`. Raises OSError."""
    return time_at(path.parent) - last_changed(path) >= SILENT_S
