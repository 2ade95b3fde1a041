"""Today's code reads and writes the bytes that an earlier version wrote.

`golden/` holds a batch of schema version 1 with every header, record and field, as msgpack and as JSON, and a spool
with the same in its segments. A field that is added later gets files of its own; these files never change.
"""

from __future__ import annotations

import shutil
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from ampmon import wire
from ampmon.spool import Destination, Position
from ampmon.spool.reader import SpoolReader
from ampmon.spool.state import Cursor
from ampmon_server.http.decoding import decode_batch
from doubles import MemoryTransport
from draining import drain


GOLDEN = Path(__file__).parent / "golden"
RUN = UUID("0192f3a0-0000-7000-8000-000000000001")
ATTEMPT = UUID("0192f3a0-0000-7000-8000-000000000002")
SPOOL = GOLDEN / "spool" / ATTEMPT.hex

HEADERS: tuple[wire.Header, ...] = (
    wire.AttemptHeader(
        run_id=RUN,
        attempt_id=ATTEMPT,
        project="vision",
        name="résumé ✓",
        owner="ada",
        started=1_790_000_000_000_000,
        rank=3,
        world_size=8,
        host="node-3",
        pid=4242,
        boot_id="3b241101-e2bb-4255-8caf-4136c566a962",
        resume_step=100,
        tags=("fp16", "baseline"),
        config={"lr": 0.5, "layers": [2, 4], "amp": True, "note": None},
        versions={"torch": "2.13.0", "ampmon": "0.1.0"},
        git_commit="0123456789abcdef0123456789abcdef01234567",
    ),
    wire.StreamHeader(
        stream="scaler",
        layout="sharded",
        scaler="GradScaler",
        device="cuda:3",
        enabled=False,
        init_scale=1024.0,
        growth_factor=4.0,
        backoff_factor=0.25,
        growth_interval=100,
        sample=16_384,
        budget=0.01,
        parameters=(
            wire.Parameter("head.weight", (8, 10), "float16"),
            wire.Parameter("scale", (), "float32"),
        ),
        modules=(wire.Module("head", "Linear"), wire.Module("encoder", "Encoder", "compiled")),
    ),
)


def _gradients(seed: int) -> wire.Gradients:
    columns = {
        name: bytes(range(seed + index, seed + index + 8))
        for index, name in enumerate(wire.Gradients.__struct_fields__)
    }
    return wire.Gradients(**columns)


RECORDS: tuple[wire.Record, ...] = (
    wire.Update(
        stream="scaler",
        seq=0,
        ordinal=0,
        time=1_790_000_000_050_000,
        scale=1024.0,
        scale_after=256.0,
        growth_tracker=-1,
        event="backoff",
        optimizers=(
            wire.OptimizerStep(optimizer="AdamW", path="fused"),
            wire.OptimizerStep(
                optimizer="SGD",
                path="unscaled",
                skipped=True,
                culprits=(wire.Culprit(0, 3, 1), wire.Culprit(1, None, None)),
                culprit_order="learned",
                culprit_parameters=2,
            ),
        ),
        duration=50_000.5,
        cost=20.25,
        interval=128,
        over_budget=True,
        fresh=True,
        memory_peak=2**40,
        gradients=_gradients(0),
        activations=wire.Activations(
            gradients=_gradients(100), elements=b"elements", forward=b"forward."
        ),
    ),
    wire.Event(
        stream="",
        seq=0,
        time=1_790_000_000_060_000,
        kind="error",
        ordinal=1,
        detail={"where": "probe", "repeat": 2, "deep": {"list": [1, 2.5, None, "x"]}},
    ),
    wire.Scalars(
        stream="scaler",
        seq=1,
        ordinal=0,
        time=1_790_000_000_070_000,
        values={"loss": 0.75, "grad_norm": None},
        kinds={"grad_norm": "inf"},
        user_step=2**53 - 1,
    ),
)

BATCH = wire.Batch(
    schema_version=1,
    run_id=RUN,
    attempt_id=ATTEMPT,
    headers=HEADERS,
    records=RECORDS,
    ended="crashed",
    alive=True,
)

SINCE: dict[type, set[str]] = {
    wire.Update: {"scheduled", "loss", "origin", "origin_module"},
    wire.StreamHeader: {"call"},
}
"""Fields that were added to the same schema version after these bytes were written."""


def structs(value: object) -> Iterator[msgspec.Struct]:
    """Yield every struct in a value, including nested ones."""
    if isinstance(value, msgspec.Struct):
        yield value
        for name in value.__struct_fields__:
            yield from structs(getattr(value, name))
    elif isinstance(value, tuple):
        for each in value:
            yield from structs(each)


def test_the_golden_batch_has_everything() -> None:
    """The golden batch has every kind of header and record, and every field of its time with a non-default value."""
    kinds: dict[type, set[str]] = {}
    for each in structs(BATCH):
        filled = kinds.setdefault(type(each), set())
        for field in msgspec.structs.fields(each):
            if getattr(each, field.name) != field.default:
                filled.add(field.name)

    wanted = {*typing.get_args(wire.Header), *typing.get_args(wire.Record), wire.Batch}
    assert wanted <= set(kinds)
    for kind, filled in kinds.items():
        assert filled == set(kind.__struct_fields__) - SINCE.get(kind, set()), kind


def test_golden_bytes_are_read_as_they_were_meant() -> None:
    """Today's code reads a batch of version 1, as msgpack and as JSON, to the same values."""
    assert decode_batch((GOLDEN / "batch-1.msgpack").read_bytes()) == BATCH
    assert decode_batch((GOLDEN / "batch-1.json").read_bytes(), json=True) == BATCH


def test_golden_values_are_written_as_they_were() -> None:
    """Today's code writes the same values to the same bytes, so an older server can read them."""
    assert wire.encode(BATCH) == (GOLDEN / "batch-1.msgpack").read_bytes()
    assert msgspec.json.encode(BATCH) == (GOLDEN / "batch-1.json").read_bytes()


FREE = {"config", "versions", "detail", "values", "kinds"}
"""Fields that hold free-form data of the user or the process."""


def with_more(value: Any) -> Any:
    """Return plain data with an unknown field added to every struct."""
    if isinstance(value, dict):
        known = {name: each if name in FREE else with_more(each) for name, each in value.items()}
        return {**known, "from_later": {"nested": [1]}}
    return [with_more(each) for each in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("encoding", [msgspec.msgpack, msgspec.json])
def test_fields_of_later_are_ignored_everywhere(encoding: Any) -> None:
    """An unknown field is ignored in a batch, a header, a record and every struct in them."""
    plain = with_more(msgspec.to_builtins(BATCH, builtin_types=(bytes,)))
    body = encoding.encode(plain)

    assert body.count(b"from_later") > 10
    assert decode_batch(body, json=encoding is msgspec.json) == BATCH


def test_an_answer_of_later_is_understood() -> None:
    """An older client ignores unknown fields in a newer server's acknowledgement."""
    answer = (
        b'{"acked": {"scaler": 1, "": 0}, "version": 7, "findings": [{"rule": "x"}], "more": 1}'
    )
    assert msgspec.json.decode(answer, type=wire.Ack) == wire.Ack(
        acked={"scaler": 1, "": 0}, version=7, findings=({"rule": "x"},)
    )


def test_a_golden_spool_is_read() -> None:
    """Today's sender reads the segments, the cursor and the destination that an older client left."""
    reader = SpoolReader(SPOOL, Position(0, 0))
    chunk = reader.read(bytes_max=2**22, records_max=100, over=True)
    destination = Destination.read(SPOOL)

    assert tuple(wire.decode(entry.payload) for entry in chunk.entries) == RECORDS
    assert {key: wire.decode(payload) for key, payload in reader.headers.items()} == {
        "attempt": HEADERS[0],
        "stream scaler": HEADERS[1],
    }
    assert chunk.corrupt == sum(entry.corrupt for entry in chunk.entries) == 0
    assert destination is not None
    assert (destination.url, destination.mode) == ("http://127.0.0.1:8267", "offline")
    assert (destination.token, destination.process.pid) == ("secret", 4242)
    cursor = Cursor.read(SPOOL)
    assert (cursor.corrupt, cursor.rejected, cursor.finished) == (2, 3, True)
    assert cursor.position == chunk.entries[0].end


def test_a_golden_spool_is_delivered(tmp_path: Path) -> None:
    """Today's sender delivers the records after an older client's cursor, with their headers."""
    shutil.copytree(GOLDEN / "spool", tmp_path / "spool")
    server = MemoryTransport()
    report = drain(tmp_path, lambda _: server, modes=("online", "offline"))

    assert (report.sent, report.problems) == (2, {})
    assert tuple(server.records(ATTEMPT)) == RECORDS[1:]
    assert server.batches[0].headers == HEADERS
