"""A real training's spool, damaged in hundreds of ways: no false record, no hidden loss, no endless read."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
import torch

import ampmon
from ampmon import identity, wire
from ampmon.client import current_run
from ampmon.spool import Destination, Position, SpoolWriter, frame, segments, spools
from ampmon.spool.layout import segment_path
from ampmon.spool.reader import SpoolReader
from attempts import DEAD
from campaigns.faults.backends import Real
from campaigns.faults.life import Key, Refused
from doubles import MemoryTransport
from draining import drain
from waiting import DEADLINE_S


SEGMENT_BYTES = 6000
BLOCK = 512
URL = "http://127.0.0.1:9"
Piece = tuple[frame.Kind, str, bytes]


def train() -> None:
    """Train in real fp16 with overflows, samples, logged values and parameters added later."""
    torch.manual_seed(1)
    layers = [torch.nn.Linear(16, 16), torch.nn.Linear(16, 4)]
    optimizer = torch.optim.SGD(layers[0].parameters(), lr=1e-3)
    scaler = ampmon.GradScaler(
        "cpu", init_scale=2.0**14, growth_interval=3, monitor=ampmon.Config(every=5)
    )
    for update in range(30):
        if update == 10:
            optimizer.add_param_group({"params": list(layers[1].parameters())})
        with torch.autocast("cpu", torch.float16):
            loss = layers[1](layers[0](torch.randn(8, 16))).float().pow(2).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        ampmon.log({"loss": loss.item()})


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> list[Piece]:
    """The headers and records of a training, as written."""
    directory = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AMPMON_DIR", str(directory))
        patch.setenv("AMPMON_MODE", "offline")
        ampmon.init("tests", "damaged")
        train()
        current_run.finish(deadline_s=DEADLINE_S)
    (path,) = spools(directory)
    salt = frame.salt_of(UUID(hex=path.name), 0)
    content = segment_path(path, 0).read_bytes()
    found = list(frame.scan(content, salt=salt, offset=0, complete=True))
    frames = [each for each in found if isinstance(each, frame.Frame)]
    assert len(frames) == len(found)
    return [(each.kind, each.key, each.payload) for each in frames]


@dataclass
class Written:
    """A spool with these headers and records in several segments, under its own attempt id."""

    directory: Path
    pieces: list[Piece]
    id: UUID = field(default_factory=identity.uuid7)
    records: dict[Key, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        destination = Destination(url=URL, mode="online", process=DEAD)
        writer = SpoolWriter(self.directory, self.id, destination, segment_bytes=SEGMENT_BYTES)
        self.path = writer.path
        for kind, key, payload in self.pieces:
            if kind == frame.HEADER:
                writer.header(key, self._renamed(payload))
            else:
                writer.append(payload)
                record = wire.decode(payload)
                assert not isinstance(record, wire.AttemptHeader | wire.StreamHeader)
                self.records[self.id, record.stream, record.seq] = payload
        writer.close()
        assert len(segments(self.path)) > 4

    def _renamed(self, payload: bytes) -> bytes:
        header = wire.decode(payload)
        if isinstance(header, wire.AttemptHeader):
            header = msgspec.structs.replace(header, attempt_id=self.id, run_id=self.id)
        return wire.encode(header)  # type: ignore[arg-type]

    def read(self, first: int = 0) -> tuple[list[bytes], int]:
        """Return the payloads from segment ``first`` on, and how often damage was met. Fail if reading does not end."""
        reader = SpoolReader(self.path, Position(first, 0))
        found: list[bytes] = []
        corrupt = 0
        for _ in range(1000):
            before = reader.position
            chunk = reader.read(bytes_max=2**16, records_max=7, over=True)
            found += [entry.payload for entry in chunk.entries]
            corrupt += chunk.corrupt + sum(entry.corrupt for entry in chunk.entries)
            if not chunk.entries and chunk.end == before:
                return found, corrupt
        raise AssertionError("reading does not end")

    def aside(self) -> set[bytes]:
        """The records the server rejected because a header they depend on is lost."""
        path = self.path / "rejected"
        lines = path.read_bytes().splitlines() if path.exists() else []
        return {msgspec.json.decode(line, type=Refused).record for line in lines}

    def contents(self) -> dict[int, bytes]:
        return {
            number: segment_path(self.path, number).read_bytes() for number in segments(self.path)
        }

    def put(self, contents: dict[int, bytes]) -> None:
        for number in segments(self.path):
            segment_path(self.path, number).unlink()
        for number, content in contents.items():
            segment_path(self.path, number).write_bytes(content)


# -- kinds of damage, as functions of the segments' contents --------------------------------------------------------

Contents = dict[int, bytes]
Chance = random.Random


def one_of(contents: Contents, chance: Chance) -> tuple[int, bytearray]:
    number = chance.choice([number for number, content in contents.items() if content])
    return number, bytearray(contents[number])


def flip_bits(contents: Contents, chance: Chance) -> None:
    for _ in range(chance.choice([1, 2, 8, 200])):
        number, content = one_of(contents, chance)
        bit = chance.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        contents[number] = bytes(content)


def cut(contents: Contents, chance: Chance) -> None:
    number, content = one_of(contents, chance)
    contents[number] = bytes(content[: chance.randrange(len(content))])


def zero_blocks(contents: Contents, chance: Chance) -> None:
    """Zero some blocks, as a file system leaves blocks that it allocated but did not write before a power cut."""
    number, content = one_of(contents, chance)
    first = chance.randrange(0, len(content), BLOCK)
    until = min(len(content), first + BLOCK * chance.randint(1, 6))
    content[first:until] = bytes(until - first)
    contents[number] = bytes(content)


def zero_tail(contents: Contents, chance: Chance) -> None:
    number, content = one_of(contents, chance)
    first = chance.randrange(len(content))
    contents[number] = bytes(content[:first]) + bytes(len(content) - first + chance.randrange(9000))


def swap_blocks(contents: Contents, chance: Chance) -> None:
    number, content = one_of(contents, chance)
    places = range(0, max(len(content) - BLOCK, 1), BLOCK)
    one, other = chance.choice(places), chance.choice(places)
    block = content[one : one + BLOCK]
    content[one : one + BLOCK] = content[other : other + BLOCK]
    content[other : other + BLOCK] = block
    contents[number] = bytes(content)


def repeat_bytes(contents: Contents, chance: Chance) -> None:
    """Repeat a piece, which moves all that follows."""
    number, content = one_of(contents, chance)
    first = chance.randrange(len(content))
    until = min(len(content), first + chance.choice([1, 7, BLOCK, 4096]))
    contents[number] = bytes(content[:until] + content[first:])


def lose_segment(contents: Contents, chance: Chance) -> None:
    del contents[one_of(contents, chance)[0]]


def swap_segments(contents: Contents, chance: Chance) -> None:
    one, other = one_of(contents, chance)[0], one_of(contents, chance)[0]
    contents[one], contents[other] = contents[other], contents[one]


def mix_in(contents: Contents, chance: Chance, *, foreign: Contents) -> None:
    """Append a segment of another spool to a segment, or replace it."""
    number, content = one_of(contents, chance)
    other = foreign[chance.choice(list(foreign))]
    contents[number] = chance.choice([b"", bytes(content)]) + other


def add_noise(contents: Contents, chance: Chance) -> None:
    number, content = one_of(contents, chance)
    at = chance.choice([0, len(content), chance.randrange(len(content))])
    noise = chance.randbytes(chance.randrange(1, 3000)).replace(b"\x00", frame.MAGIC)
    contents[number] = bytes(content[:at]) + noise + bytes(content[at:])


def empty_segment(contents: Contents, chance: Chance) -> None:
    contents[one_of(contents, chance)[0]] = b""


def ways(foreign: Contents) -> list[Callable[[Contents, Chance], None]]:
    return [
        flip_bits,
        cut,
        zero_blocks,
        zero_tail,
        swap_blocks,
        repeat_bytes,
        lose_segment,
        swap_segments,
        partial(mix_in, foreign=foreign),
        add_noise,
        empty_segment,
    ]


def damage(sound: Contents, foreign: Contents, seed: int) -> Contents:
    chance = random.Random(seed)
    contents = dict(sound)
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        if any(contents.values()):
            chance.choice(ways(foreign))(contents, chance)
    return contents


def is_part(some: list[bytes], of: list[bytes]) -> bool:
    """Whether ``some`` is a subsequence of ``of``."""
    rest = iter(of)
    return all(any(one == other for other in rest) for one in some)


# -- what must hold -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(pieces: list[Piece], tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(tmp_path_factory.mktemp("whole"), pieces)


@pytest.fixture(scope="module")
def foreign(pieces: list[Piece], tmp_path_factory: pytest.TempPathFactory) -> Contents:
    return Written(tmp_path_factory.mktemp("foreign"), pieces).contents()


@pytest.fixture
def spool(whole: Written) -> Iterator[Written]:
    """A spool to damage, restored afterwards."""
    sound = whole.contents()
    yield whole
    whole.put(sound)


def test_segment_cut_anywhere(spool: Written) -> None:
    """A cut segment yields the records before the cut and counts at most one corruption."""
    sound = spool.contents()
    number = max(sound)
    written, _ = spool.read(number)
    left = 0
    for length in [*range(600), *range(600, len(sound[number]), 5), len(sound[number]) - 1]:
        segment_path(spool.path, number).write_bytes(sound[number][:length])
        found, corrupt = spool.read(number)
        assert found == written[: len(found)]
        assert left <= len(found) < len(written)
        assert corrupt <= 1
        left = len(found)
    assert left == len(written) - 1


def test_damage_makes_no_record_and_is_counted(spool: Written, foreign: Contents) -> None:
    """700 damaged spools yield only written records, in order. Damage is counted, except cuts and lost segments."""
    written, sound = list(spool.records.values()), spool.contents()
    for seed in range(700):
        contents = damage(sound, foreign, seed)
        spool.put(contents)
        found, corrupt = spool.read()
        assert is_part(found, written), seed
        cut_only = all(content == sound[n][: len(content)] for n, content in contents.items())
        assert corrupt or cut_only or found == written, seed


def test_damaged_spools_are_delivered_to_their_end(
    pieces: list[Piece], tmp_path: Path, foreign: Contents
) -> None:
    """Unless its headers are lost, what survives of a spool arrives byte for byte or is rejected, and nothing twice."""
    for seed in range(40):
        spool = Written(tmp_path / str(seed), pieces)
        spool.put(damage(spool.contents(), foreign, seed))
        survived, corrupt = spool.read()
        server = MemoryTransport()
        report = drain(spool.directory, lambda _, server=server: server)
        stored = server.records(spool.id)
        aside = spool.aside()
        arrived = [wire.encode(record) for record in stored]
        assert arrived == [each for each in survived if each not in aside] or not server.headers
        assert (report.problems, report.rejected) == ({}, len(aside))
        assert report.corrupt == corrupt or not server.headers
        assert drain(spool.directory, lambda _, server=server: server).sent == 0


def test_what_is_left_of_a_damaged_spool_is_stored_as_it_was(
    pieces: list[Piece], tmp_path: Path, foreign: Contents
) -> None:
    """A real server stores the surviving records of damaged spools unchanged and counts the missing ones as lost."""
    backend = Real(tmp_path / "server")
    written = []
    for seed in range(6):
        spool = Written(tmp_path / "ampmon", pieces)
        spool.put(damage(spool.contents(), foreign, 7000 + seed))
        written.append(spool)
    try:
        report = drain(tmp_path / "ampmon", lambda _: backend.transport())
        assert report.problems == {}
        stored = backend.stored()
        assert len(stored) + report.rejected >= sum(len(spool.records) for spool in written) // 2
        backend.check(written, stored)
        for spool in written:
            mine = [key for key in stored if key[0] == spool.id]
            streams = {stream for _, stream, _ in mine}
            last = {each: max(seq for _, stream, seq in mine if stream == each) for each in streams}
            assert backend.lost(spool.id) == sum(last.values()) + len(last) - len(mine)
    finally:
        backend.close()
