"""Decoding a body has a bounded memory cost: a few bytes never become a large object."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ampmon import wire
from ampmon_server.http import decoding
from ampmon_server.http.decoding import TooLarge, decode_batch
from batches import Trainer


LISTS = 2**21
"""This many empty lists are 2 MiB of msgpack and 128 MiB of memory."""
FEW = 2**21


def document(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Return a valid batch as plain data, after `change`."""
    trainer = Trainer()
    records = [trainer.update(), trainer.event("init"), trainer.scalars({"loss": 1.0})]
    plain: dict[str, Any] = msgspec.msgpack.decode(wire.encode(trainer.batch(records)))
    change(plain)
    return plain


BOMB = [[]] * LISTS
FREE = {
    "headers[0].config": lambda batch, bomb: batch["headers"][0].update(config={"x": bomb}),
    "records[1].detail": lambda batch, bomb: batch["records"][1].update(detail={"x": bomb}),
}
UNKNOWN = (
    lambda batch: batch.update(new=BOMB),
    lambda batch: batch["headers"][0].update(new=BOMB),
    lambda batch: batch["records"][0].update(new={"x": BOMB}),
    lambda batch: batch["records"][1].update(new=BOMB),
)


BUILT = (wire.AttemptHeader, wire.StreamHeader, wire.Parameter, wire.Module, wire.Update)
BUILT += (wire.OptimizerStep, wire.Culprit, wire.Event, wire.Scalars, wire.Batch)


def peak(body: bytes, *, json: bool = False) -> int:
    """Return the peak memory of decoding a body in bytes, whether or not the body is accepted."""
    tracemalloc.start()
    try:
        decode_batch(body, json=json)
    except TooLarge:
        pass
    finally:
        taken = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return taken


@pytest.mark.parametrize("field", FREE)
def test_free_form_fields_are_not_built_beyond_a_megabyte(field: str) -> None:
    """A config or event detail of more than a megabyte is refused by name before it is built."""
    body = msgspec.msgpack.encode(document(lambda batch: FREE[field](batch, BOMB)))
    with pytest.raises(TooLarge) as refused:
        decode_batch(body)

    assert refused.value.field == field
    assert peak(body) < FEW


@pytest.mark.parametrize("field", FREE)
@pytest.mark.parametrize("json", [False, True])
def test_free_form_fields_hold_so_many_values(field: str, json: bool) -> None:
    """A free-form field holds up to 100 000 values; one more is refused by name."""
    encode = (msgspec.json if json else msgspec.msgpack).encode
    most = [0] * (wire.FREE_NODES_MAX - 2)  # the mapping and the list count too
    decode_batch(encode(document(lambda batch: FREE[field](batch, most))), json=json)
    with pytest.raises(TooLarge) as refused:
        decode_batch(encode(document(lambda batch: FREE[field](batch, [*most, 0]))), json=json)

    assert refused.value.field == field


@pytest.mark.parametrize("change", UNKNOWN)
def test_unknown_fields_are_not_built(change: Callable[[dict[str, Any]], object]) -> None:
    """An unknown field takes no memory, wherever it is and whatever it holds."""
    body = msgspec.msgpack.encode(document(change))
    assert len(decode_batch(body).records) == 3
    assert peak(body) < FEW


def test_json_of_too_many_values_is_not_begun() -> None:
    """JSON with too many values is refused by its number of commas, before it is decoded."""
    body = b'{"records": [' + b"0," * decoding.NODES_MAX + b"0]}"
    assert peak(body, json=True) < FEW


def test_a_batch_holds_so_many_values_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding stops at the record that exceeds the batch's total number of values."""
    monkeypatch.setattr(decoding, "NODES_MAX", 500)
    trainer = Trainer()
    scalars = [trainer.scalars(dict.fromkeys("abcdefghij", 1.0)) for _ in range(40)]
    with pytest.raises(TooLarge) as refused:
        decode_batch(wire.encode(trainer.batch(scalars)))

    assert refused.value.field == "records[23]"


def test_every_list_of_a_batch_has_an_end() -> None:
    """Every list and mapping in a decoded struct has a maximum length, except free-form fields, which are counted."""
    free = {"config", "detail"}
    unbounded = [
        f"{struct.__name__}.{field.name}"
        for struct in BUILT
        for field in msgspec.inspect.type_info(struct).fields  # type: ignore[attr-defined]
        if getattr(field.type, "max_length", 0) is None and field.name not in free
    ]
    assert unbounded == []


def test_a_small_batch_is_decoded_like_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body is decoded at once if it is small, and record by record otherwise, into the same batch."""
    body = msgspec.msgpack.encode(document(lambda batch: batch.update(new=[1])))
    small = decode_batch(body)
    monkeypatch.setattr(wire, "FREE_BYTES_MAX", 2**8)
    assert len(body) > 2**8
    assert decode_batch(body) == small


UNPRINTABLE = "a\u202eb"
NAMES: dict[str, tuple[int, dict[str, Any]]] = {
    "`$.records[0].stream`": (
        0,
        {"stream": UNPRINTABLE, "optimizers": [{"optimizer": UNPRINTABLE, "path": "plain"}]},
    ),
    "`$.records[1].stream`": (1, {"stream": UNPRINTABLE}),
    "`$.records[0].optimizers[1].optimizer`": (
        0,
        {"optimizers": [{"optimizer": name, "path": "plain"} for name in ("Adam", UNPRINTABLE)]},
    ),
    "`key` in `$.records[2].values`": (
        2,
        {"values": {"loss": 1.0, UNPRINTABLE: None}, "kinds": {UNPRINTABLE: "nan"}},
    ),
    "`key` in `$.records[2].kinds`": (2, {"kinds": {UNPRINTABLE: "nan"}}),
}


@pytest.mark.parametrize("path", NAMES)
@pytest.mark.parametrize("json", [False, True])
def test_a_name_in_a_record_is_printable(
    path: str, json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name with a control character is refused with its first path, in a small body and in a large one."""
    place, fields = NAMES[path]
    plain = document(lambda batch: batch["records"][place].update(fields))
    body = (msgspec.json if json else msgspec.msgpack).encode(plain)
    words = re.escape(f"Expected `str` matching regex {wire.PRINTABLE!r} - at {path}")
    for bytes_max in (wire.FREE_BYTES_MAX, 2**8):
        monkeypatch.setattr(wire, "FREE_BYTES_MAX", bytes_max)
        with pytest.raises(msgspec.ValidationError, match=f"^{words}$"):
            decode_batch(body, json=json)
