"""Attempts for tests of the spool and the sender: a spool with a header, and events to append."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from ampmon import identity, sender, wire
from ampmon.config import resolve
from ampmon.identity.process import ProcessIdentity, process_alive, this_process
from ampmon.sender.loop import Loop
from ampmon.spool import Destination, Position, SpoolWriter
from ampmon.spool.reader import SpoolReader
from doubles import ManualClock
from waiting import DEADLINE_S, wait_for


DEAD = ProcessIdentity(
    pid=2**22 + 1,
    started=1,
    boot_id="an earlier boot",
    host=this_process().host,
    namespace=0,
)


TOKEN = "a-token-as-a-server-makes-it-for-a-directory"


def give_token(directory: Path) -> None:
    """Write the token that a server would write to the directory, if there is none. Without it nothing is sent."""
    directory.mkdir(parents=True, exist_ok=True)
    token = directory / "token"
    with contextlib.suppress(FileExistsError):
        token.touch(mode=0o600, exist_ok=False)
        token.write_text(TOKEN + "\n")


@dataclass
class Attempt:
    """A training process as the sender sees it. ``process`` is the writer named in the spool, by default this process.

    ``clock`` times its writes. It stands still by default, so no write counts as slow and records go straight to disk.
    """

    directory: Path
    url: str = "http://127.0.0.1:9"
    mode: str = "online"
    process: ProcessIdentity | None = None
    announced: bool = True
    segment_bytes: int = 2**23
    clock: Callable[[], float] = field(default_factory=ManualClock)
    id: UUID = field(default_factory=identity.uuid7)
    run: UUID = field(default_factory=identity.uuid7)
    seq: int = 0

    def __post_init__(self) -> None:
        self.options = resolve(dir=self.directory, url=self.url, mode=self.mode, environment={})
        destination = Destination.of(self.options)
        if self.process is not None:
            destination = Destination(
                url=destination.url, mode=destination.mode, process=self.process
            )
        self.spool = SpoolWriter(
            *(self.directory, self.id, destination),
            segment_bytes=self.segment_bytes,
            clock=self.clock,
        )
        give_token(self.directory)
        if self.announced:
            self.announce()

    def announce(self) -> None:
        now_us = time.time_ns() // 1000
        header = identity.new_attempt(
            *(self.options, self.run, self.id), started=now_us, rank=0, world_size=1
        )
        assert self.spool.header("attempt", wire.encode(header))

    def event(self, kind: str = "init", stream: str = "", **detail: object) -> None:
        record = wire.Event(stream=stream, seq=self.seq, time=self.seq, kind=kind, detail=detail)
        assert self.spool.append(wire.encode(record))
        self.seq += 1

    def events(self, count: int, **detail: object) -> None:
        for _ in range(count):
            if self.spool.fullness > 1:  # a slow disk catches up
                wait_for(lambda: self.spool.fullness <= 1 or self.spool.trouble is not None)
            self.event("step_raised", **detail)

    def leave(self) -> None:
        """End as a killed process does: everything written is on disk, but no finish event."""
        wait_for(lambda: not self.spool.waiting)
        self.spool.abandon()

    def finish(self) -> None:
        self.event("finish")
        self.spool.close()


def end_sender(directory: Path) -> None:
    """End the directory's sender, which is nobody's child process."""
    found = wait_for(lambda: sender.status(directory))
    os.kill(found.pid, signal.SIGTERM)
    wait_for(lambda: not process_alive(found.pid, 0))


@contextlib.contextmanager
def working(loop: Loop) -> Iterator[threading.Thread]:
    """Run a sender's loop in a thread named "loop", which ends with the block."""
    stop = threading.Event()
    thread = threading.Thread(target=loop.run, args=(stop,), name="loop")
    thread.start()
    try:
        yield thread
    finally:
        stop.set()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def seqs(records: list[wire.Record]) -> list[int]:
    return [record.seq for record in records]


BEGIN = Position(0, 0)


def read_on(
    reader: SpoolReader, bytes_max: int = 2**24, records_max: int = 10_000
) -> tuple[list[bytes], int]:
    """The records from the reader's position to the end of its spool, and the number of damaged places."""
    payloads, corrupt = [], 0
    before = None
    while reader.position != before:
        before = reader.position
        chunk = reader.read(bytes_max=bytes_max, records_max=records_max, over=True)
        payloads += [entry.payload for entry in chunk.entries]
        corrupt += chunk.corrupt + sum(entry.corrupt for entry in chunk.entries)
    return payloads, corrupt


def seqs_of(payloads: list[bytes]) -> list[int]:
    return [
        message.seq for message in map(wire.decode, payloads) if isinstance(message, wire.Event)
    ]


# A process that appends until it is killed and reports every append.
ENDLESS = """
import os
import sys
from pathlib import Path
sys.path.insert(0, {folder!r})
from attempts import Attempt
attempt = Attempt(Path({directory!r}), url={url!r})
print(attempt.id.hex, flush=True)
while True:
    attempt.event("step_raised", text="x" * (attempt.seq * 37 % 3000))
    os.write(1, b".")
"""


def endless(directory: Path, url: str = "http://127.0.0.1:9") -> list[str]:
    """The command of a process that appends until it is killed. It prints its attempt's id, then a dot per record."""
    folder = str(Path(__file__).parent)
    return [sys.executable, "-c", ENDLESS.format(folder=folder, directory=str(directory), url=url)]


def killed(directory: Path, enough: int, url: str = "http://127.0.0.1:9") -> tuple[UUID, int]:
    """Kill an `endless` process after ``enough`` records. Return its attempt's id, and how many records it reported."""
    with subprocess.Popen(endless(directory, url), stdout=subprocess.PIPE, bufsize=0) as child:
        assert child.stdout is not None
        attempt_id = UUID(child.stdout.readline().decode().strip())
        kept = 0
        while kept < enough:
            dots = child.stdout.read(65536)
            assert dots, "the process ended by itself"
            kept += len(dots)
        child.kill()
        return attempt_id, kept + len(child.stdout.read())
