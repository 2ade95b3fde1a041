"""Records and batches survive the wire, and invalid values are refused by name."""

from __future__ import annotations

import math
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampmon import wire
from ampmon.wire.template import SteadyUpdates
from ampmon_server.http.decoding import UnsupportedVersion, decode_batch


STEP = wire.OptimizerStep(
    optimizer="AdamW", path="plain", skipped=True, culprits=(wire.Culprit(3, 1, None),)
)
UPDATE = wire.Update(
    stream="scaler",
    seq=0,
    ordinal=0,
    time=1,
    scale=2.0,
    scale_after=math.inf,
    growth_tracker=0,
    event="backoff",
    optimizers=(STEP,),
)
SCALARS = wire.Scalars(stream="scaler", seq=1, ordinal=0, time=2, values={"loss": math.nan})
EVENT = wire.Event(stream="", seq=0, time=0, kind="init", detail={"mode": "online"})


def batch(**changes: Any) -> dict[str, Any]:
    """Return a valid batch as plain data, with `changes`."""
    ids = {"run_id": str(uuid4()), "attempt_id": str(uuid4())}
    return {
        "schema_version": wire.SCHEMA_VERSION,
        **ids,
        "records": [msgspec.to_builtins(EVENT)],
        **changes,
    }


@pytest.mark.parametrize("record", [UPDATE, EVENT, SCALARS])
def test_records_survive_the_wire(record: wire.Record) -> None:
    """A decoded record equals the encoded one, including NaN and infinity."""
    decoded = wire.decode(wire.encode(record))
    if record is SCALARS:
        assert math.isnan(decoded.values["loss"])
    else:
        assert decoded == record


def test_a_raw_batch_is_a_batch() -> None:
    """A batch of records that are already encoded decodes like a batch that was encoded whole."""
    ids = {"run_id": uuid4(), "attempt_id": uuid4()}
    raw = wire.RawBatch(schema_version=1, **ids, records=(msgspec.Raw(wire.encode(UPDATE)),))
    assert decode_batch(wire.encode(raw)) == wire.Batch(schema_version=1, **ids, records=(UPDATE,))


BAD = [
    ({"run_id": "no"}, r"\$\.run_id"),
    (
        {"records": [{"type": "event", "stream": "", "seq": -1, "time": 0, "kind": "x"}]},
        r"\$\.records\[0\]\.seq",
    ),
    (
        {"records": [{"type": "event", "stream": "a\nb", "seq": 0, "time": 0, "kind": "x"}]},
        r"\.stream",
    ),
    (
        {"records": [{"type": "event", "stream": "", "seq": 2**53, "time": 0, "kind": "x"}]},
        r"\.seq",
    ),
    ({"records": [{"type": "surprise"}]}, r"\$\.records\[0\]"),
    ({"records": {}}, r"\$\.records"),
    ({"ended": "tired"}, r"\$\.ended"),
]


@pytest.mark.parametrize(("changes", "field"), BAD)
@pytest.mark.parametrize("encode", [msgspec.json.encode, msgspec.msgpack.encode])
def test_what_cannot_be_is_refused_by_name(
    changes: dict[str, Any], field: str, encode: Any
) -> None:
    """An invalid value raises an error that names its field, in JSON and in msgpack."""
    with pytest.raises(msgspec.ValidationError, match=field):
        decode_batch(encode(batch(**changes)), json=encode is msgspec.json.encode)


@pytest.mark.parametrize(("version", "side"), [(wire.SCHEMA_VERSION + 1, "server"), (0, "client")])
def test_another_schema_version_says_whom_to_upgrade(version: int, side: str) -> None:
    """A newer batch asks to upgrade the server, an older one the client, before any field is checked."""
    body = msgspec.msgpack.encode({"schema_version": version, "strange": True})
    with pytest.raises(UnsupportedVersion, match=f"on the {side}"):
        decode_batch(body)


def test_elements_of_a_parameter_are_counted_as_far_as_they_are_known() -> None:
    """`numel` is the product of the sizes, 0 if one of them is 0; beyond `COUNT_MAX` it is some larger number."""
    sizes = {(): 1, (3, 0): 0, (2**53 - 1, 2**53 - 1, 0): 0, (7, 2, 3): 42}
    assert {shape: wire.Parameter("w", shape, "float16").numel for shape in sizes} == sizes
    beyond = wire.Parameter("w", (wire.COUNT_MAX,) * 300, "float16").numel
    assert wire.COUNT_MAX < beyond < 2**128


@given(
    names=st.lists(st.text("aπ\U0010ffff", min_size=1, max_size=20), min_size=2, max_size=4),
    scale=st.floats(allow_nan=False),
    counts=st.tuples(*3 * [st.integers(0, wire.COUNT_MAX)]),
    growth_tracker=st.integers(-(2**31), 2**31 - 1),
    times=st.tuples(*2 * [st.floats(0, allow_nan=False)]),
)
def test_a_template_gives_the_same_record(
    names: list[str],
    scale: float,
    counts: tuple[int, int, int],
    growth_tracker: int,
    times: tuple[float, float],
) -> None:
    """A reader gets from a template the record that the encoder would have written."""
    stream, *optimizers = names
    steps = tuple(wire.OptimizerStep(optimizer=each, path="plain") for each in optimizers)
    template = SteadyUpdates(stream, scale, steps)
    fields = ("seq", "ordinal", "time", "growth_tracker", "duration", "cost")
    numbers: dict[str, Any] = dict(zip(fields, (*counts, growth_tracker, *times), strict=True))
    record = wire.Update(stream=stream, **template.fields(), **numbers)
    assert wire.decode(template.encode(**numbers)) == record
