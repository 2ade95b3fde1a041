"""Writes runs as TensorBoard event files, one append-only file per run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from ampmon.spool.layout import sync_path
from ampmon_server.model.names import file_name
from ampmon_server.store.forwarding import Piece, Portion


class _Position(msgspec.Struct):
    """How much of a file is known to be complete. Bytes after it may be cut off half-way, and are rewritten."""

    file: str
    bytes: int = 0


class TensorBoard:
    """Event files in a folder that TensorBoard reads: PROJECT/NAME-ID/events.out.tfevents..."""

    def __init__(self, folder: Path) -> None:
        self.key = f"tensorboard:{folder}"
        self._folder = folder

    def deliver(self, portion: Portion) -> str:
        """See `ForwardDestination.deliver`. Raises OSError."""
        if not portion.pieces:
            return portion.position
        at = msgspec.json.decode(portion.position or _begun(portion), type=_Position)
        path = self._folder / at.file
        new = not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
            # The file is shorter if somebody removed or replaced it. Then append to what is there.
            file.truncate(min(at.bytes, os.fstat(file.fileno()).st_size))
            file.seek(0, os.SEEK_END)
            _write(file, portion.pieces)
            file.flush()
            os.fsync(file.fileno())
            at.bytes = file.tell()
        if new and os.name == "posix":  # no other system can sync folders
            sync_path(path.parent)
        return msgspec.json.encode(at).decode()


def _begun(portion: Portion) -> bytes:
    """The position of a run before anything is written. It contains part of the id because names repeat and change."""
    run = f"{file_name(portion.name)}-{portion.run_id.hex[-8:]}"
    events = f"events.out.tfevents.{portion.started // 1_000_000:010d}.ampmon"
    return msgspec.json.encode(_Position(f"{file_name(portion.project)}/{run}/{events}"))


def _write(file: IO[bytes], pieces: list[Piece]) -> None:
    # `ampmon import` reads event files with the same package.
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.summary.writer.record_writer import RecordWriter

    writer = RecordWriter(file)
    if not file.tell():
        began = pieces[0].points[0].time / 1e6
        writer.write(Event(wall_time=began, file_version="brain.Event:2").SerializeToString())
    for piece in pieces:
        if piece.resumed:  # TensorBoard drops what an earlier start logged from this step on
            start, first = SessionLog(status=SessionLog.START), piece.points[0]
            at = first.time / 1e6
            writer.write(
                Event(wall_time=at, step=first.step, session_log=start).SerializeToString()
            )
        for event in _events(piece):
            writer.write(event)


def _events(piece: Piece) -> Iterator[Any]:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    for step, time, values in piece.points:
        scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        event = Event(wall_time=time / 1e6, step=step, summary=Summary(value=scalars))
        yield event.SerializeToString()
