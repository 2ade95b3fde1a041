"""One process's run: joins identity and spool, numbers the records, and counts those it drops. Never raises.

When `Stream.put` returns, the record is on disk, or in memory if the disk is slow or refuses it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID
from weakref import WeakValueDictionary

from ampmon import identity, wire
from ampmon.client import agreement
from ampmon.client.findings import Findings
from ampmon.client.maintenance_thread import MaintenanceThread
from ampmon.client.quota import SCARCE, SpoolQuota, is_rare
from ampmon.client.troubles import ErrorReporter
from ampmon.config import RunOptions, clean_name
from ampmon.spool import Destination, SpoolWriter
from ampmon.system import signals
from ampmon.training.call import Call
from ampmon.training.series import Reader, Stream


_ATTEMPT = "attempt"
_of_parents: list[object] = []
"""Values that were on their way from a device when the process forked. Never freed: freeing them ends the child."""


def _checked(header: wire.Header) -> bytes:
    """Encode a header. Raises msgspec.ValidationError if a server would reject it, and with it all its records."""
    payload = wire.encode(header)
    wire.decode(payload)
    return payload


class Recorder(ErrorReporter):
    """Writes the records of one process to its spool.

    Only the constructor raises: SpoolError if the data directory cannot be used.
    ``errors`` counts errors inside the monitor. ``dropped`` counts records that could not be written, and ``thinned``
    those written without their samples for lack of room.
    """

    def __init__(self, options: RunOptions, generation: int = 0) -> None:
        super().__init__()
        self.options = options
        self._generation = generation
        self.run_id: UUID | None = options.run_id or identity.shared_run_id(generation=generation)
        """None until the ranks have agreed on one."""
        self.streams: dict[str, Stream] = {}
        """The scalers that report to this run, in order, by name."""
        self._headers: dict[str, bytes] = {}
        self.findings = Findings(self.warn, self.failed)
        self._process = Stream(self, "")
        self.recent = self._process
        """The stream that `ampmon.log` adds to: the one that was active last."""
        self.logged: set[str] = set()
        """The names passed to `ampmon.log`."""
        self.counted: set[str] = set()  # names logged for the newest step, while no scaler reports
        self.shown: WeakValueDictionary[str, Any] = WeakValueDictionary()
        """The objects whose `metrics()` are the newest values, by stream name."""
        self.greeted = False
        self.unwatched_losses = 0
        """Number of logged losses with a ``grad_fn``, while no scaler reports."""
        self._start_over()
        self._open()

    def _start_over(self) -> None:
        """Set what this process does not share with the one that it was forked from."""
        self.dropped = 0
        self._quota = SpoolQuota()
        self._reported = {"dropped": 0, "thinned": 0}
        self._lock = threading.RLock()
        self._queue: deque[Callable[[], object]] = deque()
        self._busy = False
        self._finishing = threading.Event()
        self._reader = Reader(self.failed)
        self._opened = False
        """Also False in a forked child, until it records."""

    @property
    def thinned(self) -> int:
        return self._quota.thinned

    # -- opening ----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._opened = True
        self.attempt_id = identity.uuid7()
        self._started_us = time.time_ns() // 1000
        self.rank, self.world_size = agreement.rank_and_world_size()
        agreed = self.run_id is not None or self.world_size == 1
        own = self.run_id or self._own_run_id()
        if agreed or self.rank == 0:
            self.run_id = own
        self._spool = SpoolWriter(
            self.options.dir,
            self.attempt_id,
            Destination.of(self.options),
            quota_bytes=self.options.spool_bytes,
        )
        self._maintenance = MaintenanceThread(self, self._spool, self.attempt_id)
        if self.run_id is not None:
            self._announce(self.run_id)
        # Not empty in a forked child, where the parent's scalers go on.
        for key, payload in self._headers.items():
            self._spool.header(key, payload)
        self.event("init", mode=self.options.mode)
        self._agreement: threading.Thread | None = None
        if not agreed:
            self._agreement = threading.Thread(
                target=self._agree, args=(own,), name="ampmon-run", daemon=True
            )
            self._agreement.start()

    def _announce(self, run_id: UUID) -> None:
        header = identity.new_attempt(
            self.options,
            run_id=run_id,
            attempt_id=self.attempt_id,
            started=self._started_us,
            rank=self.rank,
            world_size=self.world_size,
        )
        payload = _checked(header)
        self._exclusively(self._spool.header, _ATTEMPT, payload)
        self.run_id = run_id
        if left_out := header.config.get(identity.LEFT_OUT):
            self.failed("keeping the run's config", ValueError(left_out))

    def after_fork_in_child(self) -> None:
        """Start over in a forked child. It leaves the parent's spool alone, and opens its own when it records."""
        streams = (self._process, *self.streams.values())
        _of_parents.extend((self._queue, self._reader, *(stream.restart() for stream in streams)))
        self._start_over()
        self._spool.abandon()
        self.findings.restart()
        self._maintenance.after_fork_in_child()

    # -- writing ----------------------------------------------------------------------------------------------------

    def stream(self, name: str | None) -> Stream | None:
        """Add a stream called ``name``, or else "scaler", with a number if that is taken. None if there is no room."""
        # One header is the attempt's.
        if len(self.streams) >= wire.HEADERS_MAX - 1:
            more = f"{len(self.streams)} are recorded already, which is the limit"
            self.failed("watching another scaler", ValueError(more))
            return None
        base = clean_name(name)[:100] if name is not None else "scaler"
        taken, number = base, 2
        with self._lock:
            while taken in self.streams:
                taken, number = f"{base}-{number}", number + 1
            stream = self.streams[taken] = Stream(self, taken)
        return stream

    def header(self, header: wire.StreamHeader) -> None:
        """Write a stream's header. A newer one replaces it."""
        payload = _checked(header)
        key = f"stream {header.stream}"
        self._headers[key] = payload
        self._exclusively(self._spool.header, key, payload)

    def write(
        self, stream: Stream, record: Callable[..., wire.Record], fields: dict[str, Any]
    ) -> None:
        """Number a record of the stream and write it. A record that cannot be kept is counted."""
        with self._lock:
            if not self._opened:
                self._open()
            self._exclusively(self._put_record, stream, record, fields)

    @property
    def scarce(self) -> bool:
        """Whether so little room is left that records are rationed."""
        return self._spool.fullness >= SCARCE

    def may_append(self, stream: Stream) -> bool:
        """Whether `append` may write a record of the stream now: none waits before it, and room is not scarce."""
        return stream.idle and not self.scarce

    def append(self, stream: Stream, encode: Callable[..., bytes], *values: object) -> bool:
        """Write ``encode(seq, time, *values)``, a record of the stream, at half the cost of `write`.

        Return False, with nothing written, where `write` has more to do. Call it only if `may_append` was True lately.
        """
        with self._lock:
            if not self._opened or self._busy:
                return False
            # Before the seq is taken: a signal handler may log between any two lines.
            self._busy = True
            kept = False
            try:
                seq = stream.seq
                stream.seq = seq + 1
                kept = self._spool.append(encode(seq, time.time_ns() // 1000, *values))
            finally:
                self._busy = False
                self.dropped += not kept
            if self._queue or self._spool.interrupted is not None:
                self._exclusively(lambda: None)
            return True

    def later(self, work: Callable[[], None]) -> None:
        """Run work on the reader's thread, which starts with the first call. Does not wait."""
        self._reader.submit(work)

    def idle(self) -> bool:
        return self._reader.idle

    def _exclusively(self, work: Callable[..., object], *args: object) -> None:
        """Do one thing at a time. A signal handler may interrupt this very thread in the middle of other work.

        Its work is then queued and runs right after. Waiting would deadlock, and going ahead would tear the record.
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
            interrupted, self._spool.interrupted = self._spool.interrupted, None
        if interrupted is not None:
            raise interrupted

    def _put_record(
        self, stream: Stream, record: Callable[..., wire.Record], fields: dict[str, Any]
    ) -> None:
        seq = stream.seq
        stream.seq = seq + 1
        kept = False
        try:
            message = record(stream=stream.name, seq=seq, time=time.time_ns() // 1000, **fields)
            fullness = self._spool.fullness
            if fullness >= SCARCE:
                self._maintenance.warn_of_spool()
            share = self._quota.share(message, fullness)
            if share is not None:
                kept = self._spool.append(wire.encode(share)) or self._keep_bare(share)
            if kept and is_rare(message):
                self._maintenance.wake()
        finally:
            self.dropped += not kept

    def _keep_bare(self, record: wire.Record) -> bool:
        """Append a record without its samples, because the whole record is too large for memory."""
        bare = wire.without_samples(record)
        if bare is None or not self._spool.append(wire.encode(bare)):
            return False
        self._quota.thinned += 1
        return True

    def event(self, kind: str, **detail: Any) -> None:
        """Write an event of the process itself; ``detail`` must be plain data."""
        self._process.event(kind, **detail)

    def unscaled(self, loss: Any, why: str, call: Call | None = None) -> bool:
        """Warn, and return True, if a loss that no watched scaler scales is computed in fp16. Never raises."""
        # It imports torch, which `ampmon.log` does not need.
        from ampmon.lints.losses import say_unscaled

        try:
            return say_unscaled(self._process, self.warn, loss, why, call)
        except Exception as error:
            signals.let_through(error)
            self.failed("lint", error)
            return False

    # -- what may go wrong ------------------------------------------------------------------------------------------

    def report_losses(self) -> None:
        """Write events for the records dropped and thinned since the last call. Warn once about dropped records."""
        with self._lock:
            for kind, count in (("dropped", self.dropped), ("thinned", self.thinned)):
                if count > self._reported[kind]:
                    # The event may be dropped too. Then the next call repeats it.
                    before = self.dropped
                    self.event(kind, count=count - self._reported[kind])
                    if self.dropped == before:
                        self._reported[kind] = count
        if self.dropped:
            self.warn(
                "dropped",
                f"ampmon: records could not be stored in {self.options.dir} and are lost; see the run's page.",
            )

    def _own_run_id(self) -> UUID:
        """The run id that this process proposes: derived from the launcher's id if there is one, else a new one."""
        whose = (identity.owner(), self.options.project, self.options.name)
        return identity.launched_run_id(*whose, generation=self._generation) or identity.uuid7()

    def _agree(self, own: UUID) -> None:
        """Agree on the run id, which rank 0 decides. Until then, records of other ranks wait on disk, unsent."""
        try:
            run_id = agreement.agree_on_run_id(self.rank, self._generation, own, self._finishing)
        except Exception as error:
            self.failed("agreeing on a run id", error)
            run_id = None
        if run_id is None:
            self.event("run_id_assumed", rank=self.rank)
        if self.run_id is None:
            self._announce(run_id or own)

    # -- the end ----------------------------------------------------------------------------------------------------

    def finish(self, deadline_s: float, outcome: str = "finished") -> None:
        """Write the last record and wait until everything is delivered, at most ``deadline_s`` seconds."""
        if not self._opened:
            return
        deadline = time.monotonic() + deadline_s
        # First, because nothing can be sent before the run has an id.
        if self._agreement is not None and self.run_id is None:
            self._agreement.join(deadline_s)
        self._conclude(outcome, deadline)
        self._finishing.set()
        if self._agreement is not None:
            # Rank 0 makes a last attempt to store the id that the other ranks wait for.
            self._agreement.join(max(deadline - time.monotonic(), 0.1))
        self._maintenance.finish(deadline)
        if left := self._spool.waiting:
            self.dropped += left
            self.warn(
                "left",
                f"ampmon: the newest {left} records could not be written to {self.options.dir} before the process "
                f"ended and are lost: {self._spool.why}.",
            )

    def _conclude(self, outcome: str, deadline: float) -> None:
        """Write the records whose values arrive from a device by the deadline, then an event with the outcome."""
        # The records that the reader has are older than those that wait in the streams.
        self._reader.finish(deadline)
        self.dropped += self._reader.handed - self._reader.done
        for stream in (self._process, *self.streams.values()):
            self.dropped += stream.close(deadline)
        with contextlib.suppress(Exception):
            self.report_losses()
            if outcome == "finished":
                self.event("finish")
            else:
                self.event("exception", type=outcome)
