"""Writes a spool in the training process: one `os.write` per record, without waiting for the disk.

If the disk is slow, refuses, or is shared by machines, records go through memory and a background thread instead.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal
from uuid import UUID

from ampmon.config import SPOOL_BYTES
from ampmon.errors import SpoolError
from ampmon.spool import layout
from ampmon.spool.relay import POLL_S, RING_BYTES, SLOW_S, Relay, words
from ampmon.spool.state import Destination
from ampmon.spool.tail import SpoolTail
from ampmon.system import private, signals
from ampmon.system.mounts import network_file_system


_WINDOW_MS = round(2000 * POLL_S)
# Together: an append of a few milliseconds proves nothing, as the scheduler of a busy machine makes one slow.
_WAITED_MAX_S = 0.1
_FORGIVEN_S = 0.0005
_QUICK_FIRST = 100
_QUICK_MAX = 100_000
# Room comes back by whole segments, so the quota holds at least this many.
_QUOTA_SEGMENTS = 8


class SpoolWriter:
    """Appends the records of one attempt to ``directory/spool/<attempt id>/``.

    One thread at a time may append; `sync` and `look` may run beside it in another. Raises SpoolError at construction
    if the directory cannot be written, and never afterwards: ``failed`` counts lost records. ``clock`` times the
    writes, in seconds.
    """

    def __init__(
        self,
        directory: Path,
        attempt_id: UUID,
        destination: Destination,
        *,
        segment_bytes: int = layout.SEGMENT_BYTES,
        quota_bytes: int = SPOOL_BYTES,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.path = layout.attempt_directory(directory, attempt_id)
        self.failed = 0
        self.interrupted: Exception | None = None
        """What a signal handler raised in an append. The caller raises it once the record is counted."""
        self._quota_bytes = quota_bytes
        self._stored = 0.0
        """Share of the quota that was on disk at the last `look`."""
        self._closed = False
        self._clock = clock
        self._relay = Relay(clock)
        self._relayed: str | None = None
        """Why records go through memory, or None if they do not."""
        self._for_good = False
        self._waited_s = 0.0
        """Seconds that slow appends took lately on the thread that appends."""
        self._quick_enough = _QUICK_FIRST
        try:
            private.directory(directory, "spool")
            segment_bytes = min(segment_bytes, quota_bytes // _QUOTA_SEGMENTS)
            self._tail = SpoolTail(self.path, attempt_id, destination, segment_bytes)
        except OSError as error:
            raise SpoolError(
                f"{directory} cannot be written ({error.strerror or error}): set AMPMON_DIR, or dir= of ampmon.init, "
                "to a writable directory on a local disk with free space"
            ) from error
        if (kind := network_file_system(self.path)) is not None:
            self._relayed = f"the data directory is on {kind}, a network file system"
            self._for_good = True

    # -- status -----------------------------------------------------------------------------------------------------

    @property
    def kept(self) -> Literal["disk", "memory"]:
        """Where a record is when `append` returns."""
        return "disk" if self._relayed is None else "memory"

    @property
    def why(self) -> str:
        """Why records go through memory, or did last."""
        return self.trouble or self._relayed or "records are written quickly again"

    @property
    def window_ms(self) -> int:
        """Milliseconds of newest records that a killed process may lose, while the disk accepts writes."""
        return 0 if self._relayed is None else _WINDOW_MS

    @property
    def waiting(self) -> int:
        """Number of records in memory only."""
        return self._relay.waiting

    @property
    def trouble(self) -> str | None:
        """Why the disk does not take the records in memory, or lost some that it took; None if it does neither."""
        stuck = "the disk does not respond" if self._relay.stuck() else None
        return self._relay.problem or stuck or self._tail.unsynced

    @property
    def fullness(self) -> float:
        """Share of the room used, on disk as of the last `look`, or in memory. 1 is full."""
        if self._relayed is None:
            return self._stored
        return max(self._stored, self._relay.used / RING_BYTES)

    @property
    def remade(self) -> int:
        """How often the spool was recreated after somebody removed it."""
        return self._tail.remade

    # -- appending --------------------------------------------------------------------------------------------------

    def append(self, payload: bytes, *, key: str = "") -> bool:
        """Write one record. On return it is in its file, though not yet synced, or `kept` in memory.

        If it is neither, count it and return False. Waits only for the system call. A ``key`` makes it a `header`.
        """
        if self._relayed is not None and not self._quick_again():
            return self._pass_on(payload, key)
        started = self._clock()
        try:
            self._tail.write(payload, key)
        except (OSError, ValueError) as error:
            # The record may be on disk already. A second one with its seq is ignored by the server.
            if signals.is_of_handler(error):
                self.interrupted = error
            elif self._closed or isinstance(error, ValueError):
                return self._fail()
            self._relayed = words(error) or "a signal interrupted the write"
            return self._pass_on(payload, key)
        took_s = self._clock() - started
        if took_s >= SLOW_S or self._waited_s > 0:
            self._weigh(took_s)
        return True

    def header(self, key: str, payload: bytes) -> bool:
        """Write a header for later records. ``key`` is "attempt" or a stream's name, and the newest of a key counts.

        Every later segment begins with it too. Returns as `append` does; if memory is full, the next segment begins.
        """
        self._tail.headers[key] = payload
        return self.append(payload, key=key)

    def _weigh(self, took_s: float) -> None:
        """Go through memory once slow appends have taken too much lately."""
        self._waited_s += took_s if took_s >= SLOW_S else -_FORGIVEN_S
        if self._waited_s >= _WAITED_MAX_S:
            self._relayed = f"writing a record took {took_s * 1000:.0f} ms"

    def _pass_on(self, payload: bytes, key: str) -> bool:
        # The payload of a header takes no room: it is held for later segments anyway.
        write, size = partial(self._tail.write, payload, key), 0 if key else len(payload)
        if not self._closed and self._relay.put(write, size):
            return True
        if key:
            self._tail.lacks_header()
        return self._fail()

    def _fail(self) -> bool:
        self.failed += 1
        return False

    def _quick_again(self) -> bool:
        """Return to the disk after enough quick writes in a row, twice as many each time."""
        relay = self._relay
        # Records in memory are older, so the disk has to get them first.
        if self._for_good or relay.quick < self._quick_enough or relay.waiting:
            return False
        relay.rest()
        self._relayed = None
        self._waited_s = 0.0
        self._quick_enough = min(2 * self._quick_enough, _QUICK_MAX)
        return True

    # -- maintenance ------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Measure the spool, and have a removed one recreated. Never raises. Blocks: not for the training thread."""
        with contextlib.suppress(OSError):
            self._stored = self._tail.look() / self._quota_bytes

    def sync(self) -> None:
        """Sync appended records to disk, to survive a power cut. Blocks: not for the training thread."""
        self._tail.sync()

    def close(self, deadline_s: float = 5.0) -> None:
        """Sync, and let the sender remove the spool once it is delivered. No record may follow.

        Blocks while the disk does, but waits at most ``deadline_s`` seconds for records in memory. ``failed`` counts
        those left then.
        """
        if self._closed:
            return
        self._closed = True
        left = self._relay.finish(time.monotonic() + deadline_s)
        self.failed += left
        if not left:
            self._tail.close()

    def abandon(self) -> None:
        """Let go without a trace in the spool: for the child of a fork, whose parent goes on writing."""
        self._closed = True
        self._relay = Relay(self._clock)
        self._tail.abandon()
