"""The state machine's model of one training process, with a plain account of what it recorded."""

from __future__ import annotations

import os
import random
import subprocess
import time
from pathlib import Path
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec

from ampmon import identity, wire
from ampmon.identity.process import ProcessIdentity, start_time, this_process
from ampmon.spool import Destination, Position, SpoolWriter, frame, segments
from ampmon.spool.layout import segment_path
from ampmon.spool.reader import SpoolReader
from attempts import BEGIN, read_on
from batches import Trainer


URL = "http://127.0.0.1:9"
Key: TypeAlias = tuple[UUID, str, int]
"""Attempt, stream and seq of a record."""
Kind: TypeAlias = Literal["event", "update", "skip", "sample", "scalars"]


class Refused(msgspec.Struct):
    """A line of the file of rejected records."""

    record: bytes
    reason: str


class Life:
    """A training process from start to end: a real spool, a real process that can die, and made-up records.

    ``records`` has everything whose append returned, in order; ``lost`` is what a power cut took of it.
    """

    def __init__(self, directory: Path, run_id: UUID, rank: int, segment_bytes: int) -> None:
        self.trainer = Trainer(run_id=run_id, rank=rank, attempt_id=identity.uuid7())
        self.id = self.trainer.attempt_id
        self.records: dict[Key, bytes] = {}
        self.lost: set[Key] = set()
        self.poison: set[Key] = set()
        self.ends: dict[Key, Position] = {}
        self.alive = True
        self.headless = False
        """Whether a power cut also took the header. Then the spool's run is unknown."""
        self._process = subprocess.Popen(["sleep", "1000"])
        destination = Destination(url=URL, mode="online", process=self._named())
        self.writer = SpoolWriter(directory, self.id, destination, segment_bytes=segment_bytes)
        self._synced: dict[int, int] = {}
        self._parameters = self.trainer.stream.parameters
        assert self.writer.header("attempt", wire.encode(self.trainer.attempt))
        self.grow(0)

    def _named(self) -> ProcessIdentity:
        pid = self._process.pid
        return msgspec.structs.replace(this_process(), pid=pid, started=start_time(pid) or 0)

    # -- actions ----------------------------------------------------------------------------------------------------

    def record(self, kind: Kind, size: int) -> None:
        """Append a record with about ``size`` bytes of its own."""
        made: wire.Record
        if kind == "event":
            made = self.trainer.event("step_raised", text="x" * size, nth=len(self.records))
        elif kind == "scalars":
            made = self.trainer.scalars({f"{n}.{size}": n / 7 for n in range(1 + size // 20)})
        else:
            (made,) = self.trainer.updates(
                1,
                skipped=(0,) if kind == "skip" else (),
                sampled=(0,) if kind == "sample" else (),
            )
        self._append(made)

    def record_poison(self) -> None:
        """Append a record that every server rejects."""
        self.poison.add(self._append(self.trainer.event("NOT A KIND")))

    def _append(self, record: wire.Record) -> Key:
        key, payload = (self.id, record.stream, record.seq), wire.encode(record)
        assert self.writer.append(payload)
        self._flush()
        self.records[key] = payload
        self.ends[key] = self._end()
        return key

    def grow(self, parameters: int) -> None:
        """Write the stream's header again, with more parameters."""
        more = (wire.Parameter(f"late.{n}", (2, 3), "float32") for n in range(parameters))
        self._parameters = (*self._parameters, *more)
        header = msgspec.structs.replace(self.trainer.stream, parameters=self._parameters)
        assert self.writer.header(self.trainer.scaler, wire.encode(header))
        self._flush()

    def sync(self) -> None:
        self.writer.sync()
        self._synced = self._sizes()

    def close(self) -> None:
        """End as a script that finishes."""
        self._append(self.trainer.event("finish"))
        self.writer.close()
        self._end_process()

    def kill(self, torn: float) -> None:
        """End in the middle of an append that never returned: the file has the share ``torn`` of its bytes."""
        path = segment_path(self.writer.path, segments(self.writer.path)[-1])
        payload = b"\xc1" * 300
        salt = frame.salt_of(self.id, int(path.stem))
        bytes_of_frame = frame.encode(0, payload, salt=salt, offset=path.stat().st_size)
        with path.open("ab") as file:
            file.write(bytes_of_frame[: int(torn * len(bytes_of_frame))])
        self.writer.abandon()
        self._end_process()

    def cut_power(self, random_: random.Random) -> None:
        """End with the machine: each segment keeps its synced bytes, and randomly some of the others."""
        self.writer.abandon()
        self._end_process()
        for number, size in self._sizes().items():
            left = random_.randint(min(self._synced.get(number, 0), size), size)
            os.truncate(segment_path(self.writer.path, number), left)
            self.lost |= {
                key for key, end in self.ends.items() if end.segment == number and end.offset > left
            }

        reader = SpoolReader(self.writer.path, BEGIN)
        read_on(reader)
        self.headless = "attempt" not in reader.headers

    def _end_process(self) -> None:
        self._process.kill()
        self._process.wait()
        self.alive = False

    def _flush(self) -> None:
        """Wait until records are on disk: on a slow machine they pass through memory first."""
        while self.writer.waiting:
            time.sleep(0.001)

    # -- positions --------------------------------------------------------------------------------------------------

    def _end(self) -> Position:
        last = segments(self.writer.path)[-1]
        return Position(last, segment_path(self.writer.path, last).stat().st_size)

    def _sizes(self) -> dict[int, int]:
        path = self.writer.path
        return {number: segment_path(path, number).stat().st_size for number in segments(path)}
