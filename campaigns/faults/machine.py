"""A hypothesis state machine that breaks spool, sender and server in any order, and compares with a plain list."""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

import ampmon
from ampmon import identity, wire
from ampmon.sender.delivery import SpoolDelivery
from ampmon.sender.destination_worker import DestinationWorker
from ampmon.spool import Destination, spools
from ampmon.spool.state import Cursor
from campaigns.faults.backends import Backend, InMemory, Real
from campaigns.faults.life import Key, Kind, Life, Refused
from doubles import ManualClock
from draining import Witness, drain


IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""A folder in memory, if there is one: an example waits for the disk some hundred times."""
LIVES_MAX = 5
RANKS = st.integers(0, 1)
KINDS: st.SearchStrategy[Kind] = st.sampled_from(["event", "update", "skip", "sample", "scalars"])
PACKAGE = str(Path(ampmon.__file__).parent)


class Killed(BaseException):
    """Ends the sender's process."""


@contextmanager
def killed_after(lines: int) -> Iterator[None]:
    """End the block at ampmon's nth line of code, as a kill would."""
    left = lines

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        nonlocal left
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        left -= event == "line"
        if left == 0:
            raise Killed
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    except Killed:
        pass
    finally:
        sys.settrace(before)


class Machine(RuleBasedStateMachine):
    """What may happen to trainers, sender, network and server. Subclasses choose the server."""

    backend_class: type[InMemory | Real]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="ampmon-machine-", dir=IN_MEMORY))
        self.directory = self.folder / "ampmon"
        self.backend: Backend = self.backend_class(self.folder / "server")
        self.clock = ManualClock()
        self.run_id = identity.uuid7()
        self.lives: list[Life] = []
        self.acked: set[Key] = set()
        self.gone: set[Key] = set()
        """Records of databases that were emptied."""
        self.limited = False
        self.emptied = False
        self.worker: DestinationWorker | None = None
        self.seen: set[str] = set()

    # -- the training processes -------------------------------------------------------------------------------------

    @initialize(rank=RANKS, segment_bytes=st.sampled_from([500, 2000, 20_000]))
    def begin(self, rank: int, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.lives.append(Life(self.directory, self.run_id, rank, segment_bytes))

    def living(self) -> list[Life]:
        return [life for life in self.lives if life.alive]

    def one(self, nth: int) -> Life:
        """One of the living processes."""
        living = self.living()
        return living[nth % len(living)]

    @precondition(lambda self: len(self.lives) < LIVES_MAX)
    @rule(rank=RANKS)
    def start_trainer(self, rank: int) -> None:
        """Start a new or resumed process, unless one runs on this rank."""
        if not any(life.trainer.rank == rank for life in self.living()):
            self.lives.append(Life(self.directory, self.run_id, rank, self.segment_bytes))

    @precondition(lambda self: self.living())
    @rule(nth=RANKS, kinds=st.lists(KINDS, min_size=1, max_size=12), size=st.integers(0, 3000))
    def record(self, nth: int, kinds: list[Kind], size: int) -> None:
        for kind in kinds:
            self.one(nth).record(kind, size)

    @precondition(lambda self: self.living())
    @rule(nth=RANKS)
    def record_poison(self, nth: int) -> None:
        self.one(nth).record_poison()

    @precondition(lambda self: self.living())
    @rule(nth=RANKS, parameters=st.integers(0, 40))
    def grow_header(self, nth: int, parameters: int) -> None:
        self.one(nth).grow(parameters)

    @precondition(lambda self: self.living())
    @rule(nth=RANKS)
    def sync(self, nth: int) -> None:
        self.one(nth).sync()

    @precondition(lambda self: self.living())
    @rule(nth=RANKS)
    def finish(self, nth: int) -> None:
        self.one(nth).close()

    @precondition(lambda self: self.living())
    @rule(nth=RANKS, torn=st.floats(0, 0.99))
    def kill_trainer(self, nth: int, torn: float) -> None:
        self.one(nth).kill(torn)

    @precondition(lambda self: self.living())
    @rule(nth=RANKS, seed=st.integers(0, 2**32))
    def cut_power(self, nth: int, seed: int) -> None:
        self.one(nth).cut_power(random.Random(seed))

    # -- the sender -------------------------------------------------------------------------------------------------

    def transport(self) -> Witness:
        """A new connection that notes which records were acknowledged."""

        def note(sent: wire.Batch, ack: wire.Ack) -> None:
            for record in sent.records:
                assert ack.acked[record.stream] >= record.seq
                self.acked.add((sent.attempt_id, record.stream, record.seq))

        return Witness(self.backend.transport(), note)

    def work(self, turns: int, seconds: float) -> None:
        """Run the sender's loop: look for spools, and give each its turn."""
        destination = (
            Destination.read(spools(self.directory)[0]) if spools(self.directory) else None
        )
        if destination is None:
            return
        if self.worker is None:
            self.seen = set()
            self.worker = DestinationWorker(
                destination, self.transport(), self.clock, self.seen.discard
            )
        for path in spools(self.directory):
            described = Destination.read(path)
            if path.name not in self.seen and described is not None:
                self.seen.add(path.name)
                self.worker.add(SpoolDelivery(path, described, self.worker.transport, self.clock))
        for _ in range(turns):
            self.worker.work()
            self.clock.advance(seconds)

    def end_sender(self) -> None:
        if self.worker is not None:
            self.worker.transport.close()
        self.worker = None

    @rule(turns=st.integers(1, 4), seconds=st.sampled_from([0.02, 1.0, 40.0]))
    def send(self, turns: int, seconds: float) -> None:
        self.work(turns, seconds)

    @rule(lines=st.integers(1, 1500), turns=st.integers(1, 3))
    def kill_sender(self, lines: int, turns: int) -> None:
        """Kill the sender at any line of its work. The next one starts from what is on disk."""
        with killed_after(lines):
            self.work(turns, 1.0)
        self.end_sender()

    @rule()
    def sync_command(self) -> None:
        """Run a manual sync beside the sender."""
        drain(self.directory, lambda _: self.transport())

    @precondition(lambda self: self.lives)
    @rule(nth=st.integers(0, LIVES_MAX), how=st.sampled_from(["lost", "garbage", "unwritable"]))
    def spoil_cursor(self, nth: int, how: str) -> None:
        """Delete the cursor, fill it with garbage, or make it unusable. The sender starts again."""
        path = self.lives[nth % len(self.lives)].writer.path / "cursor"
        if not path.parent.exists():
            return
        self.end_sender()
        clear(path)
        if how == "garbage":
            path.write_bytes(b'{"segment": 1, "off')
        elif how == "unwritable":
            path.mkdir()

    # -- network and server -----------------------------------------------------------------------------------------

    @rule(up=st.booleans())
    def server_is(self, up: bool) -> None:
        self.backend.up(up=up)

    @rule(data=st.data(), count=st.integers(1, 3))
    def requests_meet(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            self.backend.meet(data.draw(st.sampled_from(self.backend.faults)))

    @rule(bytes_max=st.sampled_from([600, 4000, 2**22]))
    def limit_batches(self, bytes_max: int) -> None:
        self.limited |= bytes_max < 2**22
        self.backend.limit(bytes_max)

    @rule()
    def restart_server(self) -> None:
        self.backend.restart()

    @rule()
    def empty_server(self) -> None:
        self.emptied = True
        self.gone |= self.backend.stored()
        self.backend.empty()

    # -- invariants -------------------------------------------------------------------------------------------------

    def recorded(self) -> dict[Key, bytes]:
        return {key: payload for life in self.lives for key, payload in life.records.items()}

    def aside(self) -> set[Key]:
        """The records in the files of rejected records, each exactly as recorded."""
        found = set()
        for life in self.lives:
            by_payload = {payload: key for key, payload in life.records.items()}
            path = life.writer.path / "rejected"
            for line in path.read_bytes().splitlines() if path.exists() else ():
                payload = msgspec.json.decode(line, type=Refused).record
                found.add(by_payload[payload])
        return found

    @invariant()
    def nothing_is_acknowledged_or_passed_that_is_not_stored(self) -> None:
        stored = self.backend.stored()
        assert stored <= set(self.recorded())
        assert not stored & {key for life in self.lives for key in life.poison}
        assert self.acked <= stored | self.gone
        kept = stored | self.gone | self.aside()
        for life in self.lives:
            if life.writer.path.exists():
                position = Cursor.read(life.writer.path).position
                passed = {key for key, end in life.ends.items() if end <= position}
                assert passed <= kept | life.lost

    def teardown(self) -> None:
        try:
            if self.lives:
                self._come_to_rest()
                self._judge()
        finally:
            self.end_sender()
            for life in self.living():
                life.kill(0.0)
            self.backend.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _come_to_rest(self) -> None:
        """Bring everything up, end every process, and give the sender all the time it needs."""
        self.backend.up(up=True)
        self.backend.limit(2**22)
        for life in self.living():
            life.close()
        for life in self.lives:
            clear(life.writer.path / "cursor", directories_only=True)
        for _ in range(400):
            self.work(1, 40.0)
            if not any(
                list(life.writer.path.glob("*.seg")) for life in self.lives if not life.headless
            ):
                return
        raise AssertionError(f"delivery does not end: {self.worker and self.worker.problem}")

    def _judge(self) -> None:
        stored, aside = self.backend.stored(), self.aside()
        for life in self.lives:
            assert set(life.records) - life.lost <= stored | self.gone | aside
            assert aside & set(life.records) <= (set(life.records) if self.limited else life.poison)
            refused = (life.writer.path / "rejected").exists()
            assert life.writer.path.exists() == refused or life.headless
        self.backend.check(self.lives, stored, aside)


def clear(path: Path, *, directories_only: bool = False) -> None:
    if path.is_dir():
        path.rmdir()
    elif not directories_only:
        path.unlink(missing_ok=True)
