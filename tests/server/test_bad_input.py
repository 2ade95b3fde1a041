"""Each kind of bad input gets a 4xx that names the problem, stores nothing and leaves the server working."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
import zstandard
from starlette.testclient import TestClient

from ampmon import wire
from ampmon_server.http.app import create_app
from ampmon_server.http.routes.bodies import BodyRefused
from ampmon_server.http.routes.ingest import unpacked
from ampmon_server.settings import Settings
from batches import Trainer, statistics


def document(batch: wire.Batch) -> dict[str, Any]:
    """A batch as plain data, for tests to corrupt."""
    plain: dict[str, Any] = msgspec.msgpack.decode(wire.encode(batch))
    return plain


def whole() -> dict[str, Any]:
    """A valid batch: a skipped update, one with gradients, an event and scalars."""
    trainer = Trainer()
    records: list[wire.Record] = [
        trainer.update(skipped=True),
        trainer.update(gradients=statistics().to_wire()),
        trainer.event("init"),
        trainer.scalars({"loss": 1.0}),
    ]
    return document(trainer.batch(records))


def spoil(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    spoilt = whole()
    change(spoilt)
    return spoilt


def of_gradients(name: str, value: bytes) -> Callable[[dict[str, Any]], object]:
    return lambda batch: batch["records"][1]["gradients"].update({name: value})


def counts(number: int) -> bytes:
    return number.to_bytes(8, "little", signed=True) * 2


def in_record(place: int, **fields: object) -> Callable[[dict[str, Any]], object]:
    return lambda batch: batch["records"][place].update(fields)


def in_header(place: int, **fields: object) -> Callable[[dict[str, Any]], object]:
    return lambda batch: batch["headers"][place].update(fields)


SPOILT = {
    "another schema": (lambda b: b.update(schema_version=99), 400, "schema_version"),
    "no schema": (lambda b: b.pop("schema_version"), 422, "body"),
    "a run id that is none": (lambda b: b.update(run_id="seven"), 422, "run_id"),
    "a string for a number": (in_record(0, seq="first"), 422, "records[0].seq"),
    "an unknown record": (in_record(0, type="surprise"), 422, "records[0].type"),
    "an unknown event of the scale": (in_record(0, event="jump"), 422, "records[0].event"),
    "a step below zero": (in_record(0, ordinal=-1), 422, "records[0].ordinal"),
    "a step beyond counting": (in_record(0, ordinal=2**53), 422, "records[0].ordinal"),
    "a time below zero": (in_record(0, time=-5), 422, "records[0].time"),
    "an update of no scaler": (in_record(0, stream=""), 422, "records[0].stream"),
    "an update without optimizers": (in_record(0, optimizers=[]), 422, "records[0].optimizers"),
    "steps that go back": (in_record(1, ordinal=0), 422, "records[1].ordinal"),
    "an endless duration": (in_record(0, duration=math.inf), 422, "records[0].duration"),
    "a cost of NaN": (in_record(0, cost=math.nan), 422, "records[0].cost"),
    "control characters in a name": (in_header(0, name="a\x1b[2Jb"), 422, "headers[0].name"),
    "a null byte in a name": (in_header(0, project="a\0b"), 422, "headers[0].project"),
    "text that runs backwards": (in_header(0, owner="a\u202eb"), 422, "headers[0].owner"),
    "a name of a megabyte": (in_header(0, name="x" * 10**6), 422, "headers[0].name"),
    "a name that nobody sees": (in_header(0, name="\u200b\u3164 "), 422, "headers[0].name"),
    "an empty name": (in_header(0, name=""), 422, "headers[0].name"),
    "another run's header": (in_header(0, run_id=str(Trainer().run_id)), 422, "headers[0].run_id"),
    "a rank below zero": (in_header(0, rank=-1), 422, "headers[0].rank"),
    "a resume step beyond counting": (
        in_header(0, resume_step=2**53 - 1),
        422,
        "records[1].ordinal",
    ),
    "a shape beyond counting": (
        in_header(1, parameters=[["w", [2**40, 2**40], "float16"]]),
        422,
        "headers[1].parameters[0].shape",
    ),
    "a shape whose product takes hours": (
        in_header(1, parameters=[["w", [2**53 - 1] * 50_000, "float16"]]),
        422,
        "headers[1].parameters[0][1]",
    ),
    "a culprit that is not there": (
        in_header(1, parameters=[["w", [2], "float16"]]),
        422,
        "records[0].optimizers[0].culprits[0]",
    ),
    "gradients of a wrong length": (
        of_gradients("zeros", b"\0" * 9),
        422,
        "records[1].gradients.zeros",
    ),
    "gradients of other parameters": (
        of_gradients("parameters", b"\0\0\0\0\7\0\0\0"),
        422,
        "records[1].gradients.parameters",
    ),
    "a negative count": (of_gradients("inf", counts(-1)), 422, "records[1].gradients.inf"),
    "counts that do not add up": (
        of_gradients("looked", counts(3)),
        422,
        "records[1].gradients.looked",
    ),
    "counts beyond counting": (
        lambda b: (
            of_gradients("looked", counts(2**62))(b),
            of_gradients("nan", counts(2**62 - 80))(b),
        ),
        422,
        "records[1].gradients.looked",
    ),
    "a config of more values than bytes would suggest": (
        in_header(0, config={"x": [[]] * 100_000}),
        413,
        "headers[0].config",
    ),
    "a null scalar without a kind": (in_record(3, values={"loss": None}), 422, "records[3].kinds"),
    "a scalar of an unknown kind": (
        in_record(3, values={"loss": None}, kinds={"loss": "big"}),
        422,
        "records[3].kinds[...]",
    ),
    "a record that is a list": (lambda b: b["records"].append([1]), 422, "records[4]"),
}


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """One server for all rejected bodies, so that what one leaves behind shows in the next."""
    settings = Settings(
        data_directory=tmp_path_factory.mktemp("refusing"),
        body_bytes_max=2**20,
        decoded_bytes_max=2 * 2**20,
    )
    app = create_app(settings)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        client.headers["Authorization"] = f"Bearer {app.state.service.keys.token}"
        yield client


def post(client: TestClient, body: bytes, **headers: str) -> Any:
    return client.post(
        "/api/v1/ingest", content=body, headers={"Content-Type": "application/msgpack", **headers}
    )


def assert_refused(client: TestClient, answer: Any, status: int, field: str | None) -> None:
    """Check that the problem is named, nothing is stored and the server is ready."""
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == status
    assert problem["detail"]
    if field is not None:
        assert problem["field"] == field
    assert client.get("/api/v1/runs").json()["runs"] == []
    assert client.get("/readyz").status_code == 200


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_batch_is_refused(refusing: TestClient, name: str) -> None:
    """One invalid value anywhere in a batch is named, and nothing of the batch is stored."""
    change, status, field = SPOILT[name]
    answer = post(refusing, msgspec.msgpack.encode(spoil(change)))

    assert_refused(refusing, answer, status, field)


def test_the_batch_that_was_spoilt_is_good(client: TestClient) -> None:
    """The uncorrupted batch is stored, so only the corruption causes the rejections."""
    assert post(client, msgspec.msgpack.encode(whole())).status_code == 200
    assert len(client.get("/api/v1/runs").json()["runs"]) == 1


def test_a_name_that_nobody_sees_is_refused_in_words(client: TestClient) -> None:
    """A blank name or tag, and one with a control character, gets one sentence that names the field."""
    assert post(client, msgspec.msgpack.encode(whole())).status_code == 200
    (run,) = client.get("/api/v1/runs").json()["runs"]
    for edit, field in (
        ({"name": "   "}, "name"),
        ({"name": "a\x1b[2J"}, "name"),
        ({"tags": ["a", "\u200b"]}, "tags[1]"),
    ):
        answer = client.patch(f"/api/v1/runs/{run['run_id']}", json=edit)
        needs = f"{field} needs a visible character and no control characters."
        assert answer.status_code == 422
        assert (answer.json()["field"], answer.json()["detail"]) == (field, needs)
    for name, needs in (("", "at least 1 character"), ("a" * 257, "at most 256 characters")):
        answer = client.patch(f"/api/v1/runs/{run['run_id']}", json={"name": name})
        assert answer.json()["detail"] == f"name needs {needs}."
    spoilt = post(client, msgspec.msgpack.encode(spoil(in_record(0, stream="a\nb"))))
    assert spoilt.json()["detail"] == "records[0].stream may hold no control characters."


def bomb(pack: Callable[[bytes], bytes]) -> Callable[[], bytes]:
    """Compress 64 MiB of zeros lazily, so that test collection does not pay for it."""
    return lambda: pack(b"\0" * 2**26)


def lists() -> bytes:
    """A compressed batch of a million empty lists."""
    batch = spoil(in_record(2, detail={"x": [[]] * 2**20}))
    return zstandard.compress(msgspec.msgpack.encode(batch))


BODIES: dict[str, tuple[bytes | Callable[[], bytes], dict[str, str], int]] = {
    "nothing": (b"", {}, 400),
    "half a batch": (msgspec.msgpack.encode(whole())[:-20], {}, 400),
    "bytes of something else": (bytes(range(256)), {}, 422),
    "half a JSON batch": (b'{"schema_version": 1, "run', {"Content-Type": "application/json"}, 400),
    "deep JSON": (
        b'{"schema_version": 1, "x": ' + b"[" * 100_000,
        {"Content-Type": "application/json"},
        400,
    ),
    "deep msgpack": (b"\x82\xaeschema_version\x01\xa1x" + b"\x91" * 100_000, {}, 400),
    "text that is no UTF-8": (
        b'{"schema_version": 1, "run_id": "\xff"}',
        {"Content-Type": "application/json"},
        422,
    ),
    "an unknown type": (b"{}", {"Content-Type": "text/plain"}, 415),
    "an unknown compression": (b"{}", {"Content-Encoding": "br"}, 415),
    "gzip that is none": (b"{}", {"Content-Encoding": "gzip"}, 400),
    "zstd that is none": (b"{}", {"Content-Encoding": "zstd"}, 400),
    "half of a gzip": (
        gzip.compress(msgspec.msgpack.encode(whole()))[:-30],
        {"Content-Encoding": "gzip"},
        400,
    ),
    "half of a zstd": (
        zstandard.compress(msgspec.msgpack.encode(whole()))[:-30],
        {"Content-Encoding": "zstd"},
        400,
    ),
    "too large": (b"\0" * (2**20 + 1), {}, 413),
    "a zstd of empty lists": (lists, {"Content-Encoding": "zstd"}, 413),
    "a gzip bomb": (bomb(gzip.compress), {"Content-Encoding": "gzip"}, 413),
    "a zstd bomb": (bomb(zstandard.compress), {"Content-Encoding": "zstd"}, 413),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_cannot_be_read_is_refused(refusing: TestClient, name: str) -> None:
    """A truncated, oversized, mislabelled or decompression-bomb body is rejected, and nothing is stored."""
    body, headers, status = BODIES[name]
    content = body if isinstance(body, bytes) else body()

    assert_refused(refusing, post(refusing, content, **headers), status, None)


def test_a_body_without_a_length_is_cut_off(refusing: TestClient) -> None:
    """A chunked body beyond the size limit gets 413."""
    chunks = (b"\0" * 2**16 for _ in range(100))
    answer = refusing.post(
        "/api/v1/ingest", content=chunks, headers={"Content-Type": "application/msgpack"}
    )

    assert_refused(refusing, answer, 413, "body")


@pytest.mark.engines
def test_odd_but_legal_values_are_kept(client: TestClient) -> None:
    """Values that JSON cannot hold come back from free-form fields as text, or as null with their kind."""
    trainer = Trainer()
    odd = {
        "nan": math.nan,
        "deep": {},
        "huge": 2**63,
        "bytes": b"\xff",
        "nul": "a\0b",
        "list": [math.inf],
    }
    node = odd
    for _ in range(100):
        node["deep"] = node = {"deep": {}}
    assert (
        post(client, wire.encode(trainer.batch([trainer.event("init", **odd)]))).status_code == 200
    )
    (event,) = client.get(f"/api/v1/runs/{trainer.run_id}/events").json()["events"]

    assert (event["detail"]["nan"], event["detail"]["nan_kind"]) == (None, "nan")
    assert event["detail"]["huge"] == str(2**63)
    assert event["detail"]["nul"] == "a\0b"
    assert event["detail"]["list"] == ["inf"]


BAD_QUERIES = (
    ("runs?limit=0", "limit"),
    ("runs?limit=99999", "limit"),
    ("runs?status=great", "status"),
    ("runs?cursor=nonsense", "cursor"),
    ("runs?cursor=9999999999999999999999-1", "cursor"),
    ("{run}/updates?start=-1", "start"),
    ("{run}/updates?stop=9007199254740993", "stop"),
    ("{run}/updates?cursor=1e3", "cursor"),
    ("{run}/skips?cursor=1-2", "cursor"),
    (f"{{run}}/skips?cursor=1-{'9' * 39}-1-1", "cursor"),
    (f"{{run}}/events?cursor=1-1-1-{2**63}", "cursor"),
    (f"runs?cursor=1-{2**128}", "cursor"),
    (f"{{run}}/simulate?growth_interval={'9' * 400}", "growth_interval"),
    (f"{{run}}/figures/simulated?sim_growth_interval={'9' * 400}", "sim_growth_interval"),
    ("{run}/events?limit=ten", "limit"),
    ("{run}/figures/scale?start=5&stop=5", "stop"),
    ("{run}/figures/scale?x=colour", "x"),
    ("{run}/figures/scale?width=0", "width"),
    ("live?runs=a,b", "runs"),
)


def test_a_bad_query_names_its_parameter(
    client: TestClient, send: Callable[[wire.Batch], object]
) -> None:
    """An invalid query gets 422 with the parameter's name."""
    trainer = Trainer()
    send(trainer.batch(trainer.updates(3)))
    for query, field in BAD_QUERIES:
        answer = client.get(f"/api/v1/{query.format(run=f'runs/{trainer.run_id}')}")
        assert (answer.status_code, answer.json()["field"]) == (422, field), query


WITH_TEXT = (
    "runs?project=",
    "runs?search=",
    "runs?tag=",
    "{run}/scalars?name=",
    "{run}/figures/scalars?name=",
    "{run}/skips?parameter=",
    "{run}/parameters?search=",
    "{run}/whatif?parameter=",
)


@pytest.mark.engines
def test_a_null_character_is_asked_for_nowhere(
    client: TestClient, send: Callable[[wire.Batch], object]
) -> None:
    """A query with a null character, which PostgreSQL text cannot hold, gets 422 with its parameter's name."""
    trainer = Trainer()
    send(trainer.batch(trainer.updates(3)))
    for query in WITH_TEXT:
        answer = client.get(f"/api/v1/{query.format(run=f'runs/{trainer.run_id}')}a%00")
        assert answer.status_code == 422, query
        assert query.endswith(f"{answer.json()['field']}=")


@pytest.mark.storage
def test_a_token_is_called_by_plain_letters(client: TestClient) -> None:
    """A token name with a newline, a null character or a look-alike letter is neither created nor revoked."""
    for name in ("ada\n", "a\0", "аda"):
        wanted = {"name": name, "owner": "ada", "scopes": ["read"]}
        assert client.post("/api/v1/tokens", json=wanted).status_code == 422
        assert client.delete(f"/api/v1/tokens/{quote(name)}").status_code == 404
    assert client.get("/api/v1/tokens").json() == {"tokens": []}


NOWHERE = (
    "runs/{other}",
    "runs/not-a-uuid",
    "runs/{other}/updates",
    "runs/{other}/skips",
    "runs/{other}/events",
    "runs/{other}/parameters",
    "runs/{other}/figures/scale",
    "runs/{run}/figures/pie",
    "runs/{run}/updates?stream=7",
    "runs/{run}/parameters?step=2",
    "nowhere",
)


def test_what_is_not_there_is_not_found(
    client: TestClient, send: Callable[[wire.Batch], object]
) -> None:
    """A missing run, stream, figure, sample or path gets 404 with a problem document."""
    trainer = Trainer()
    send(trainer.batch(trainer.updates(3)))
    for path in NOWHERE:
        answer = client.get(f"/api/v1/{path.format(run=trainer.run_id, other=Trainer().run_id)}")
        assert answer.status_code == 404, path
        assert answer.headers["Content-Type"] == "application/problem+json"


def test_a_body_is_unpacked_to_a_hundred_times_its_size() -> None:
    """Beyond 8 MiB, a body may decompress to at most a hundred times its size."""
    assert len(unpacked(zstandard.compress(bytes(2**23)), "zstd", 2**26)) == 2**23
    with pytest.raises(BodyRefused, match="at most"):
        unpacked(zstandard.compress(bytes(2**24)), "zstd", 2**26)
