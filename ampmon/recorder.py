"""One process's run: joins identity, spool and sender, numbers the records, counts what it drops, and never raises.

Whoever measures hands records in through a `Stream`. A record is on disk when `Stream.put` returns; a thread that wakes
once a second does what may wait: syncing the file, looking after the sender, warning about a server that is not there.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from ampmon import agreement, identity, sender, wire
from ampmon.config import RunOptions, clean_name
from ampmon.reader import Reader
from ampmon.spool import Destination, SpoolWriter
from ampmon.stream import Stream


HOUSEKEEPING_S = 1.0
_ATTEMPT = "attempt"
ERRORS_IN_FULL = 100
"""Errors of the monitor beyond these are reported in hundreds."""


class AmpmonWarning(UserWarning):
    """Something is wrong with the monitoring. Training goes on untouched."""


def warn(message: str) -> None:
    """Warn the user. Never raises: not where a filter makes errors of warnings, nor where nobody listens."""
    try:
        warnings.warn(message, AmpmonWarning, stacklevel=2)
    except Exception:
        with contextlib.suppress(Exception):
            sys.stderr.write(message + "\n")


def _checked(header: wire.Header) -> bytes:
    """A header's bytes. Raises msgspec.ValidationError for one that a server would refuse, and all records with it."""
    payload = wire.encode(header)
    wire.decode(payload)
    return payload


class Recorder:
    """Writes the records of one process to its spool.

    Raises SpoolError when the data directory cannot be used, ConfigurationError for bad options, at construction only.
    ``errors`` counts what went wrong inside the monitor, ``dropped`` the records that could not be written.
    """

    def __init__(self, options: RunOptions, generation: int = 0) -> None:
        self.options = options
        self._generation = generation
        self.run_id: UUID | None = options.run_id or identity.shared_run_id(generation=generation)
        """None while the ranks have not agreed on one."""
        self.errors = 0
        self.dropped = 0
        self._lock = threading.RLock()
        self._queue: deque[Callable[[], object]] = deque()
        self._busy = False
        self._streams: dict[str, Stream] = {}
        self._headers: dict[str, bytes] = {}
        self._warned: set[str] = set()
        self._finishing = threading.Event()
        self._reader = Reader(self.failed)
        self._process = Stream(self, "")
        self.recent = self._process
        """The stream that `ampmon.log` adds to: the one that moved last."""
        self._opened = False
        """False also in the child of a fork, until it records."""
        self._open()

    # -- opening ----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._opened = True
        self.attempt_id = identity.uuid7()
        self.rank, self.world_size = agreement.rank_and_world_size()
        if self.run_id is None and self.world_size == 1:
            self.run_id = identity.uuid7()
        destination = Destination.of(self.options)
        self._spool = SpoolWriter(self.options.dir, self.attempt_id, destination)
        if self.run_id is not None:
            self._announce(self.run_id)
        for key, payload in self._headers.items():
            self._spool.header(key, payload)
        self._process.event("init", mode=self.options.mode)
        self._housekeeper = self._spawn(self._keep_house)
        self._agreement = self._spawn(self._agree) if self.run_id is None else None

    def _spawn(self, work: Callable[[threading.Event], None]) -> threading.Thread:
        thread = threading.Thread(target=work, args=(self._finishing,), name="ampmon", daemon=True)
        thread.start()
        return thread

    def _announce(self, run_id: UUID) -> None:
        header = identity.new_attempt(
            self.options,
            run_id=run_id,
            attempt_id=self.attempt_id,
            rank=self.rank,
            world_size=self.world_size,
        )
        payload = _checked(header)
        self._exclusively(self._spool.header, _ATTEMPT, payload)
        self.run_id = run_id

    def after_fork_in_child(self) -> None:
        """The child is a process of its own: it leaves the parent's spool alone, and opens one when it records."""
        self._lock = threading.RLock()
        self._queue.clear()
        self._busy = False
        self._reader = Reader(self.failed)
        self._finishing = threading.Event()
        self._spool.abandon()
        for stream in (self._process, *self._streams.values()):
            stream.restart()
        self._opened = False

    # -- writing ----------------------------------------------------------------------------------------------------

    def stream(self, name: str | None) -> Stream:
        """A new stream, with ``name`` or else "scaler", numbered where that is taken."""
        base = clean_name(name)[:100] if name is not None else "scaler"
        taken, number = base, 2
        while taken in self._streams:
            taken, number = f"{base}-{number}", number + 1
        stream = Stream(self, taken)
        self._streams[taken] = stream
        return stream

    def header(self, header: wire.StreamHeader) -> None:
        """Write what describes a stream, anew when it has changed."""
        payload = _checked(header)
        key = f"stream {header.stream}"
        self._headers[key] = payload
        self._exclusively(self._spool.header, key, payload)

    def write(
        self, stream: Stream, record: Callable[..., wire.Record], fields: dict[str, Any]
    ) -> None:
        """Number a record of the stream and write it; one that cannot be kept is counted."""
        if not self._opened:
            self._open()
        self._exclusively(self._put_record, stream, record, fields)

    def later(self, work: Callable[[], None]) -> None:
        """Do work on the reader's thread, which starts with the first. Does not wait."""
        self._reader.submit(work)

    def idle(self) -> bool:
        """Whether the reader has nothing to do."""
        return self._reader.idle

    def _exclusively(self, work: Callable[..., object], *args: object) -> None:
        """Do one thing at a time. A signal handler may interrupt this very thread in the middle of another: its own
        then comes right after that, for waiting would be for ever, and going ahead would tear the record.
        """
        with self._lock:
            if self._busy:
                self._queue.append(partial(work, *args))
                return
            self._busy = True
            try:
                work(*args)
                while self._queue:
                    self._queue.popleft()()
            finally:
                self._busy = False

    def _put_record(
        self, stream: Stream, record: Callable[..., wire.Record], fields: dict[str, Any]
    ) -> None:
        seq = stream.seq
        stream.seq = seq + 1
        kept = False
        try:
            message = record(stream=stream.name, seq=seq, time=time.time_ns() // 1000, **fields)
            kept = self._spool.append(wire.encode(message))
        finally:
            self.dropped += not kept

    def disabled(self, scaler: str) -> None:
        """A scaler was made that does nothing: say so on the page, and once here."""
        self._process.event("disabled", scaler=scaler)
        self.warn(
            "disabled",
            f"ampmon: this {scaler} is disabled (no CUDA here, or enabled=False, as for bf16), so there is nothing to "
            'measure. On a CPU write GradScaler("cpu").',
        )

    # -- what may go wrong ------------------------------------------------------------------------------------------

    def failed(self, where: str, error: BaseException) -> None:
        """Count an error of the monitor's own, warn once for each place, and report it. Never raises."""
        self.errors += 1
        full = self.errors <= ERRORS_IN_FULL
        with contextlib.suppress(Exception):
            self.warn(
                where,
                f"ampmon: {where} failed ({type(error).__name__}: {error}). Training is not affected; this is counted "
                "and shown on the run's page.",
            )
        if not full and self.errors % ERRORS_IN_FULL:
            return
        with contextlib.suppress(Exception):
            self._process.event(
                "error",
                where=where,
                type=type(error).__name__,
                message=str(error)[:500],
                repeat=1 if full else ERRORS_IN_FULL,
            )

    def warn(self, key: str, message: str) -> None:
        """Warn once for each key. Never raises."""
        if key not in self._warned:
            self._warned.add(key)
            warn(message)

    # -- the thread -------------------------------------------------------------------------------------------------

    def _keep_house(self, finishing: threading.Event) -> None:
        while True:
            with contextlib.suppress(Exception):
                self._look_after_delivery()
            if finishing.wait(HOUSEKEEPING_S):
                return

    def _agree(self, finishing: threading.Event) -> None:
        """Records wait in the spool, on disk but unsent, until the ranks know their run."""
        try:
            run_id = agreement.agree_on_run_id(self.rank, self._generation, finishing)
        except Exception as error:
            self.failed("agreeing on a run id", error)
            run_id = None
        if run_id is None:
            run_id = identity.uuid7()
            self._process.event("run_id_assumed", rank=self.rank)
        self._announce(run_id)

    def _look_after_delivery(self) -> None:
        self._spool.sync()
        if self.dropped:
            self.warn(
                "spool",
                f"ampmon: records could not be written to {self.options.dir} and are lost; see the page.",
            )
        if self.options.mode != "online":
            return
        sender.ensure_running(self.options.dir)
        status = sender.status(self.options.dir)
        problem = status.problem(self.options.url) if status else None
        if problem:
            self.warn(
                "unreachable",
                f"ampmon: {self.options.url} cannot be reached ({problem}). Training goes on; records wait in "
                f"{self.options.dir} and are sent when it is back. Start the server with `ampmon serve`.",
            )

    # -- the end ----------------------------------------------------------------------------------------------------

    def finish(self, deadline_s: float, outcome: str = "finished") -> None:
        """Write the last record, and wait until all is delivered, at most ``deadline_s`` seconds."""
        if self._finishing.is_set() or not self._opened:
            return
        deadline = time.monotonic() + deadline_s
        if self._agreement is not None:
            self._agreement.join(deadline_s)
        self._conclude(outcome, deadline)
        self._finishing.set()
        for thread in filter(None, (self._agreement, self._housekeeper)):
            thread.join(max(deadline - time.monotonic(), 0.1))
        with contextlib.suppress(Exception):
            self._spool.close()
            if self.options.mode == "online":
                sender.ensure_running(self.options.dir)
                left_s = max(deadline - time.monotonic(), 0.0)
                sender.wait_until_sent(self.options.dir, self.attempt_id, left_s)

    def _conclude(self, outcome: str, deadline: float) -> None:
        """Write what still waits for a device that answers by then, and then how it ended."""
        self._reader.finish(deadline)
        self.dropped += self._reader.handed - self._reader.done
        for stream in (self._process, *self._streams.values()):
            self.dropped += stream.close(deadline)
        with contextlib.suppress(Exception):
            if self.dropped:
                self._process.event("dropped", count=self.dropped)
            if outcome == "finished":
                self._process.event("finish")
            else:
                self._process.event("exception", type=outcome)
