"""Delivers one spool to its server: batches, acknowledgements, and records that the server refuses."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec

from ampmon import wire
from ampmon.errors import HeaderMissing, Refused, SpoolError, Unreachable
from ampmon.sender.adoption import LINGER_S, WriterLiveness
from ampmon.spool import layout
from ampmon.spool.layout import Position
from ampmon.spool.reader import Chunk, SpoolEntry, SpoolReader
from ampmon.spool.state import REJECTED, Answers, Cursor, Destination, is_closed
from ampmon.system import private
from ampmon.transport import BLAMES_THE_BATCH, TOO_LARGE, Transport


BATCH_BYTES_MAX = 2**22
BATCH_RECORDS_MAX = 5000
_BATCH_BYTES_MIN = 2**16
_DURABLE_EVERY_S = 1.0
_FINISH_BYTES_MAX = 4096
_log = logging.getLogger(__name__)

Progress: TypeAlias = Literal["sent", "quiet", "done"]


class SpoolDelivery:
    """Delivers the spool at ``path``. ``destination`` describes its writer, ``sent`` counts acknowledged records.

    ``watched`` is False once the server has answered that no page is open.
    """

    def __init__(
        self,
        path: Path,
        destination: Destination,
        transport: Transport,
        clock: Callable[[], float],
        *,
        linger_s: float = LINGER_S,
    ) -> None:
        self.path = path
        self.sent = 0
        self.watched = True
        self._author = WriterLiveness(path, destination.process, clock, linger_s=linger_s)
        self._transport = transport
        self._settled = CursorKeeper(path, clock, destination.bytes_max)
        self._answers = Answers(path)
        self._reader = SpoolReader(path, self.cursor.position)
        self._scout = SpoolReader(path, self.cursor.position)
        self._holds_records = False
        """Whether the scout, which looks for the attempt's header, has passed a record."""
        self._known: dict[str, bytes] = {}
        self._attempt: wire.AttemptHeader | None = None
        self._bytes_max = self._bytes_at_once = self._bytes_allowed = BATCH_BYTES_MAX

    @property
    def cursor(self) -> Cursor:
        """How far the spool is delivered, and what was left out."""
        return self._settled.cursor

    def live(self, *, asked_now: bool = False) -> bool:
        """Whether the writer may still append. Up to half a second out of date, unless ``asked_now``."""
        return not self._author.is_over(asked_now=asked_now)

    def attended(self) -> bool:
        """Whether the writer was just seen running."""
        return self._author.is_alive()

    def urgent(self) -> bool:
        """Whether the next batch should not wait for more records: it is the first or last, or many wait already."""
        with contextlib.suppress(OSError):
            least = _BATCH_BYTES_MIN if self.sent else 1
            return is_closed(self.path) or self.waiting_bytes() >= least
        return True

    def series(self) -> tuple[UUID, int] | None:
        """The run and rank of this attempt, or None if not known yet. Does not raise."""
        with contextlib.suppress(OSError, SpoolError):
            if self._attempt is not None or self._find_attempt(over=False):
                assert self._attempt is not None
                return self._attempt.run_id, self._attempt.rank
        return None

    def waiting(self) -> bool:
        """Whether there is something to send, or the end can be reported, for a known run."""
        return self._attempt is not None and (self.waiting_bytes() > 0 or not self.live())

    def waiting_bytes(self) -> int:
        """Bytes on disk that are not acknowledged."""
        return layout.bytes_behind(self.path, self.cursor.position)

    def limit(self, bytes_max: int) -> None:
        """Limit a batch to ``bytes_max`` bytes of records. May be called from another thread."""
        self._bytes_allowed = max(bytes_max, _BATCH_BYTES_MIN)

    def advance(self) -> Progress:
        """Send one batch, if there is something to send.

        Return "done" once nothing is left and nobody writes. What was delivered is then deleted from disk. Blocks for a
        few requests. Raises OSError, Unreachable, and Refused if the headers or the sender itself are refused. A later
        call resends what was not acknowledged.
        """
        over = self._author.is_over()
        if self._attempt is None and not self._find_attempt(over):
            return self._leave() if over else "quiet"
        before = self.cursor.position
        # An earlier call may have read on and failed.
        self._reader.position = before
        bytes_max = min(self._bytes_at_once, self._bytes_allowed)
        chunk = self._reader.read(bytes_max=bytes_max, records_max=BATCH_RECORDS_MAX, over=over)
        if chunk.entries or self._new_headers():
            self._deliver(chunk.entries)
        elif chunk.end == before:
            return self._conclude() if over else "quiet"
        self._settled.pass_by(chunk)
        return "sent"

    def _find_attempt(self, over: bool) -> bool:
        """Find the attempt's header. It may be far behind the first records: the ranks first agree on their run."""
        while (header := self._scout.headers.get("attempt")) is None:
            before = self._scout.position
            chunk = self._scout.read(
                bytes_max=_BATCH_BYTES_MIN, records_max=BATCH_RECORDS_MAX, over=over
            )
            self._holds_records |= bool(chunk.entries)
            if self._scout.position == before:
                return False
        try:
            self._attempt = msgspec.msgpack.decode(header, type=wire.AttemptHeader)
        except msgspec.DecodeError as error:
            raise SpoolError(f"the header of {self.path} cannot be read: {error}") from error
        self._reader.headers.setdefault("attempt", header)
        return True

    def _leave(self) -> Progress:
        """Remove a spool whose run can no longer be known, unless it holds a record."""
        if not self._settled.keeps_records() and not self._holds_records:
            layout.remove(self.path)
        return "done"

    def _conclude(self) -> Progress:
        if not self.cursor.finished and not self._goes_on():
            self._send([], headers=self._new_headers(), ended="crashed")
        self._settled.remove()
        return "done"

    def _goes_on(self) -> bool:
        """Whether a writer that was only silent has begun a new spool."""
        assert self._attempt is not None, "nothing is concluded before the run is known"
        own = self.path.with_name(self._attempt.attempt_id.hex)
        return own != self.path and own.exists()

    # -- sending --------------------------------------------------------------------------------------------------

    def _new_headers(self) -> dict[str, bytes]:
        headers = self._reader.headers
        return {key: payload for key, payload in headers.items() if self._known.get(key) != payload}

    def _deliver(self, entries: list[SpoolEntry]) -> None:
        """Send records in order. Halve a refused part until the refused record is alone.

        Before that, send it once more: the server may have lacked headers, which a batch without records has brought.
        """
        parts = [entries]
        proven = False
        while parts:
            part = parts.pop()
            try:
                self._send(part, headers=self._new_headers())
            except Refused as refused:
                self._blame_a_record(refused, proven=proven)
                again = not proven and refused.status != TOO_LARGE
                proven = True
                if again:
                    parts.append(part)
                elif len(part) > 1:
                    middle = len(part) // 2
                    # A stack: the first half is sent next, so records stay in order.
                    parts += [part[middle:], part[:middle]]
                elif part:
                    self._set_aside(part[0], refused)
            else:
                self.sent += len(part)
                self._settled.acknowledge(part)

    def _set_aside(self, entry: SpoolEntry, refused: Refused) -> None:
        """Set a refused record aside. If it is an update that is too large, still deliver it without its samples."""
        with contextlib.suppress(Refused, msgspec.DecodeError):
            if refused.status == TOO_LARGE and (bare := _without_samples(entry)) is not None:
                self._send([bare], headers=self._new_headers())
                self.sent += 1
        self._settled.set_aside(entry, str(refused))

    def _blame_a_record(self, refused: Refused, *, proven: bool) -> None:
        """Raise Refused if no record is at fault: by its status, or because an empty batch is refused too."""
        if refused.status not in BLAMES_THE_BATCH:
            raise refused
        if proven:
            return
        self._send([], headers=dict(self._reader.headers))
        if refused.status == TOO_LARGE:
            tried = min(self._bytes_max, self._bytes_allowed)
            self._bytes_max = max(tried // 2, _BATCH_BYTES_MIN)

    def _send(
        self,
        entries: list[SpoolEntry],
        *,
        headers: dict[str, bytes],
        ended: Literal["crashed"] | None = None,
    ) -> None:
        try:
            self._post(entries, headers, ended)
        except HeaderMissing as error:
            try:
                self._post(entries, dict(self._reader.headers), ended)
            except HeaderMissing:
                raise Refused(f"{error}, and this spool has no more of them", 409) from None

    def _post(
        self, entries: list[SpoolEntry], headers: dict[str, bytes], ended: Literal["crashed"] | None
    ) -> None:
        assert self._attempt is not None, "nothing is sent before the run is known"
        batch = wire.RawBatch(
            schema_version=wire.SCHEMA_VERSION,
            run_id=self._attempt.run_id,
            attempt_id=self._attempt.attempt_id,
            headers=tuple(msgspec.Raw(payload) for payload in headers.values()),
            records=tuple(msgspec.Raw(entry.payload) for entry in entries),
            ended=ended,
            alive=self._author.is_alive(),
        )
        try:
            ack = self._transport.send(wire.encode(batch))
        except Unreachable:
            # Restart small: a slow connection may manage less, and a recovered server has many clients to serve.
            self._bytes_at_once = _BATCH_BYTES_MIN
            raise
        self._bytes_at_once = min(2 * self._bytes_at_once, self._bytes_max)
        self._known.update(headers)
        self.watched = ack.watched
        self._answers.keep(ack.findings)
        self._answers.ask(ack.request)


def _without_samples(entry: SpoolEntry) -> SpoolEntry | None:
    bare = wire.without_samples(wire.decode(entry.payload))
    return None if bare is None else dataclasses.replace(entry, payload=wire.encode(bare))


class CursorKeeper:
    """Keeps the cursor of the spool at ``path``, and frees the disk space behind it."""

    def __init__(self, path: Path, clock: Callable[[], float], rejected_bytes_max: int) -> None:
        self.cursor = Cursor.read(path)
        self._path = path
        self._rejected_bytes_max = rejected_bytes_max
        self._clock = clock
        self._durable_s = clock()

    def acknowledge(self, entries: list[SpoolEntry]) -> None:
        """Move past records that the server has stored. Raises OSError."""
        if entries:
            finished = self.cursor.finished or any(_is_finish(entry.payload) for entry in entries)
            corrupt = self.cursor.corrupt + sum(entry.corrupt for entry in entries)
            self._move(entries[-1].end, finished=finished, corrupt=corrupt)

    def pass_by(self, chunk: Chunk) -> None:
        """Move past a chunk, headers and damage included. Raises OSError."""
        if chunk.end != self.cursor.position:
            self._move(chunk.end, corrupt=self.cursor.corrupt + chunk.corrupt)

    def set_aside(self, entry: SpoolEntry, reason: str) -> None:
        """Move past a refused record. The file `rejected` keeps it with the reason, if it has room. Raises OSError.

        If it has no room for its first record, it keeps the reason alone.
        """
        path, cursor = self._path / REJECTED, self.cursor
        about = {"time": time.time_ns() // 1000, "reason": reason, "record": entry.payload}
        line = msgspec.json.encode(about)
        fd = private.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with open(fd, "ab", buffering=0) as file:
            before = file.seek(0, os.SEEK_END)
            full = before + len(line) >= self._rejected_bytes_max
            if full:
                line = b"" if before else msgspec.json.encode(about | {"record": None})
            if line and file.write(line + b"\n") <= len(line):  # a full disk took a part
                file.truncate(before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if full and not cursor.discarded:
            _log.warning("%s is full: further rejected records are only counted", path)
        self._move(
            entry.end,
            rejected=cursor.rejected + 1,
            discarded=cursor.discarded + full,
            corrupt=cursor.corrupt + entry.corrupt,
        )

    def keeps_records(self) -> bool:
        """Whether refused records lie in the spool. Checks the disk, since their count may be lost with the cursor."""
        return (self._path / REJECTED).exists()

    def remove(self) -> None:
        """Free the disk space of a delivered spool, except for records set aside. Raises OSError."""
        if not self.keeps_records():
            layout.remove(self._path)
            return
        last = layout.segments(self._path)[-1:]
        if last:
            self._move(Position(last[0] + 1, 0))

    def _move(self, end: Position, **changes: Any) -> None:
        now_s = self._clock()
        next_segment = end.segment != self.cursor.segment
        # Synced before segments are deleted: an older cursor lacks counts that only they could give.
        durable = next_segment or now_s - self._durable_s >= _DURABLE_EVERY_S
        cursor = msgspec.structs.replace(
            self.cursor, segment=end.segment, offset=end.offset, **changes
        )
        self.cursor = cursor
        try:
            cursor.write(self._path, durable=durable)
        except OSError:
            # Go on: on a full disk, delivery frees space. An old cursor only costs a resend, which is ignored.
            _log.exception("the cursor of %s cannot be written", self._path)
        if durable:
            self._durable_s = now_s
        if next_segment:
            layout.discard_segments(self._path, before=end.segment)


def _is_finish(payload: bytes) -> bool:
    """Whether a record is the attempt's own finish event. Large records cannot be, and are not decoded."""
    if len(payload) > _FINISH_BYTES_MAX or b"finish" not in payload:
        return False
    try:
        record = wire.decode(payload)
    except msgspec.DecodeError:
        return False
    return isinstance(record, wire.Event) and record.kind == "finish" and record.stream == ""
