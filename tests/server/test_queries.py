"""What is asked over HTTP, and the shapes of the answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from starlette.testclient import TestClient

from ampmon import wire
from ampmon_server import assets
from ampmon_server.figures import FIGURES
from batches import PARAMETERS, START, Trainer


Send = Callable[[wire.Batch], dict[str, Any]]


@pytest.fixture
def trainer(send: Send) -> Trainer:
    """A run of 60 updates, three skipped and six sampled, that has ended well."""
    trainer = Trainer(name="<b>run</b>", project="letters")
    records = [
        trainer.event("init"),
        *trainer.updates(60, skipped=[10, 20, 30], sampled=range(0, 60, 10)),
        msgspec.structs.replace(trainer.scalars({"loss": 0.5, "lr": 1e-3}), ordinal=10),
        trainer.event("manual_set", stream="scaler", scale=2.0),
        trainer.event("finish"),
    ]
    assert send(trainer.batch(records)) == {"acked": {"": 1, "scaler": 61}, "version": 1}
    return trainer


def test_a_summary_says_how_the_run_is(client: TestClient, trainer: Trainer) -> None:
    """A list's row says who trains, how far it is and how well, with totals and what is so now."""
    (summary,) = client.get("/api/v1/runs").json()["runs"]

    assert summary["run_id"] == str(trainer.run_id)
    assert (summary["project"], summary["name"], summary["owner"]) == (
        "letters",
        "<b>run</b>",
        "ada",
    )
    assert (summary["status"], summary["started"]) == ("finished", START)
    assert (summary["updates"], summary["skipped"], summary["effective_updates"]) == (60, 3, 57)
    assert summary["skip_rate"] == pytest.approx(0.05)
    assert (summary["scale"], summary["scale_kind"]) == (1024.0, None)
    assert summary["zero_fraction"] == pytest.approx(0.1)
    assert summary["subnormal_fraction"] == pytest.approx(0.9)
    assert summary["headroom_bits"] == pytest.approx(29.5, abs=1)
    assert (summary["records"], summary["lost_records"], summary["last_step"]) == (64, 0, 59)
    assert summary["streams"] == [
        {"stream": "0", "rank": 0, "scaler": "scaler", "layout": "replicated"}
    ]
    assert (summary["parameters"], summary["sampled_updates"], summary["exact"]) == (2, 6, True)


def test_a_run_says_who_it_is(client: TestClient, trainer: Trainer) -> None:
    """A run's own answer is its summary with the processes, scalers and configuration behind it."""
    run = client.get(f"/api/v1/runs/{trainer.run_id}").json()
    (attempt,) = run["identity"]["attempts"]
    (scaler,) = run["identity"]["scalers"]

    assert run["updates"] == 60
    assert attempt["attempt_id"] == str(trainer.attempt_id)
    assert (attempt["ended"], attempt["versions"]) == ("finished", {"torch": "2.13.0"})
    assert (scaler["type"], scaler["growth_interval"]) == ("GradScaler", 2000)
    assert run["identity"]["config"] == {"lr": 0.1}


def test_runs_are_paged_newest_first(client: TestClient, send: Send) -> None:
    """Pages hold every run once, in order, and none that a filter leaves out."""
    run_ids = []
    for number in range(7):
        trainer = Trainer(project="odd" if number % 2 else "even")
        run_ids.append(str(trainer.run_id))
        send(trainer.batch(headers=(replaced(trainer.attempt, started=START + number),)))
    seen, cursor = [], None
    while True:
        page = client.get(
            "/api/v1/runs", params={"limit": 3, **({"cursor": cursor} if cursor else {})}
        )
        seen += [run["run_id"] for run in page.json()["runs"]]
        cursor = page.json()["next"]
        if cursor is None:
            break

    assert seen == run_ids[::-1]
    odd = client.get("/api/v1/runs?project=odd&status=running").json()["runs"]
    assert [run["run_id"] for run in odd] == run_ids[1::2][::-1]
    assert client.get("/api/v1/runs?status=crashed").json()["runs"] == []


def replaced(header: wire.AttemptHeader, **fields: object) -> wire.AttemptHeader:
    values = {name: getattr(header, name) for name in header.__struct_fields__}
    return wire.AttemptHeader(**{**values, **fields})


def test_updates_come_as_columns(client: TestClient, trainer: Trainer) -> None:
    """Columns of one length over a range of steps, null where not sampled, with the step to go on from."""
    columns = client.get(f"/api/v1/runs/{trainer.run_id}/updates?start=8&stop=40&limit=5").json()
    following, rows_from = columns.pop("next"), columns.pop("rows_from")
    kinds = {name: columns.pop(name) for name in list(columns) if name.endswith("_kind")}

    assert {len(column) for column in columns.values()} == {5}
    assert (columns["step"], rows_from) == ([8, 9, 10, 11, 12], 0)
    assert columns["skipped"] == [False, False, True, False, False]
    assert columns["event"] == ["steady", "steady", "backoff", "steady", "steady"]
    assert columns["scale_after"] == [1024, 1024, 512, 1024, 1024]
    assert columns["zero_fraction"] == [None, None, pytest.approx(0.1), None, None]
    assert columns["path"] == ["plain"] * 5
    assert set(kinds.values()) == {None}
    rest = client.get(f"/api/v1/runs/{trainer.run_id}/updates?stop=40&cursor={following}").json()
    assert (rest["step"], rest["next"]) == (list(range(13, 40)), None)


def test_a_run_without_updates_has_empty_columns(client: TestClient, send: Send) -> None:
    """Before its first update a run's columns are there, and empty."""
    trainer = Trainer()
    send(trainer.batch(headers=(trainer.attempt,)))
    columns = client.get(f"/api/v1/runs/{trainer.run_id}/updates").json()

    assert columns["step"] == columns["scale"] == columns["zero_fraction"] == []


def test_skips_name_their_culprits(client: TestClient, trainer: Trainer) -> None:
    """The ledger is newest first, paged, and names the parameters that overflowed, in backward order."""
    first = client.get(f"/api/v1/runs/{trainer.run_id}/skips?limit=2").json()
    second = client.get(
        f"/api/v1/runs/{trainer.run_id}/skips", params={"limit": 2, "cursor": first["next"]}
    ).json()
    newest = first["skips"][0]

    assert [skip["step"] for skip in first["skips"] + second["skips"]] == [30, 20, 10]
    assert second["next"] is None
    assert newest["culprits"] == [
        {"parameter": PARAMETERS[1].name, "inf": 3, "nan": 0},
        {"parameter": PARAMETERS[0].name, "inf": 1, "nan": 0},
    ]
    assert (newest["cause"], newest["path"], newest["optimizer"]) == ("inf", "plain", "SGD")
    assert (newest["scale"], newest["scale_after"]) == (1024.0, 512.0)
    assert (newest["culprit_order"], newest["culprit_parameters"]) == ("learned", 2)


def test_the_nearest_skip_is_found_on_either_side(client: TestClient, trainer: Trainer) -> None:
    """A skip after or before a step is found with its time; from nowhere the first and the last; beyond them none."""

    def step_of(side: str, **step: int) -> int | None:
        path = f"/api/v1/runs/{trainer.run_id}/skips/nearest"
        answer = client.get(path, params={"side": side, **step}).json()
        assert (answer["time"] is None) == (answer["step"] is None)
        return answer["step"]  # type: ignore[no-any-return]

    assert [step_of("after", step=10), step_of("before", step=10)] == [20, None]
    assert [step_of("after", step=30), step_of("before", step=31)] == [None, 30]
    assert [step_of("after"), step_of("before")] == [10, 30]


def test_events_are_told_apart_by_their_stream(client: TestClient, trainer: Trainer) -> None:
    """Events of the process and of its scalers are listed together, each saying whose it is."""
    events = client.get(f"/api/v1/runs/{trainer.run_id}/events").json()["events"]

    assert {(event["kind"], event["scaler"]) for event in events} == {
        ("init", ""),
        ("finish", ""),
        ("manual_set", "scaler"),
    }
    page = client.get(f"/api/v1/runs/{trainer.run_id}/events?limit=2").json()
    rest = client.get(
        f"/api/v1/runs/{trainer.run_id}/events", params={"cursor": page["next"]}
    ).json()
    assert len(page["events"]) + len(rest["events"]) == 3


def test_parameters_are_those_of_the_sample_before(client: TestClient, trainer: Trainer) -> None:
    """Asked for a step that was not sampled, the newest sample before it answers, and says which it is."""
    answer = client.get(f"/api/v1/runs/{trainer.run_id}/parameters?step=25").json()
    row = answer["parameters"][0]

    assert answer["step"] == 20
    assert (row["name"], row["shape"], row["numel"]) == ("embedding.weight", [100, 8], 800)
    assert (row["looked"], row["zeros"], row["subnormal"], row["on_grid"]) == (80, 8, 72, True)
    assert sum(row["histogram"]) == 72


@pytest.mark.parametrize("view", ["", "&start=5&stop=25&width=300", f"&x=time&start={START}"])
def test_figures_are_drawn_and_tagged(client: TestClient, trainer: Trainer, view: str) -> None:
    """Each figure is a Plotly figure; asked for again with its tag, it is not sent again. One rank has no strips."""
    for name in FIGURES:
        chosen = f"&parameter={PARAMETERS[0].name}" if name in {"parameter", "histogram"} else ""
        path = f"/api/v1/runs/{trainer.run_id}/figures/{name}?stream=0{chosen}{view}"
        answer = client.get(path)
        again = client.get(path, headers={"If-None-Match": answer.headers["ETag"]})

        assert {"data", "layout"} <= answer.json().keys(), name
        assert ("empty" in answer.json()["layout"]["meta"]) == (name == "ranks")
        assert (again.status_code, again.content) == (304, b""), name


def test_a_figure_changes_its_tag_with_its_data(
    client: TestClient, trainer: Trainer, send: Send
) -> None:
    """Once there is more to draw, the old tag is no excuse."""
    path = f"/api/v1/runs/{trainer.run_id}/figures/scale"
    tag = client.get(path).headers["ETag"]
    send(trainer.batch(trainer.updates(5)))

    assert client.get(path, headers={"If-None-Match": tag}).status_code == 200


def test_json_is_taken_as_msgpack_is(client: TestClient, trainer: Trainer) -> None:
    """A batch in JSON, its arrays in base64, is stored like one in msgpack."""
    other = Trainer()
    body = msgspec.json.encode(other.batch(other.updates(3, sampled=[1])))
    answer = client.post(
        "/api/v1/ingest", content=body, headers={"Content-Type": "application/json"}
    )

    assert answer.json() == {"acked": {"scaler": 2}, "version": 1}
    assert client.get(f"/api/v1/runs/{other.run_id}/parameters").json()["step"] == 1


def test_a_user_may_rename_archive_and_delete(client: TestClient, trainer: Trainer) -> None:
    """Name, tags and the archive are the user's; a deleted run is gone for good."""
    path = f"/api/v1/runs/{trainer.run_id}"
    edited = client.patch(path, json={"name": "better", "tags": ["keep"], "archived": True})
    bad = [
        client.patch(path, content=body).status_code
        for body in (b'{"name": ""}', b'{"nam": "x"}', b"[]", b"{", b'{"name": "a\\u0000"}')
    ]

    assert edited.json()["name"] == "better"
    assert bad == [422] * 5
    assert client.get("/api/v1/runs").json()["runs"] == []
    assert [run["tags"] for run in client.get("/api/v1/runs?archived=true").json()["runs"]] == [
        ["keep"]
    ]
    assert client.delete(path).status_code == 204
    assert [client.delete(path).status_code, client.get(path).status_code] == [404, 404]
    assert client.patch(f"/api/v1/runs/{uuid4()}", json={"name": "x"}).status_code == 404


@pytest.mark.parametrize(
    "path", ["/", "/css/base.css", "/roles.json", "/js/main.js", "/vendor/plotly.min.js"]
)
def test_the_page_and_its_parts_are_served(client: TestClient, path: str) -> None:
    """Each file of the page comes with a tag, and is not sent again to who holds it."""
    answer = client.get(path)
    again = client.get(path, headers={"If-None-Match": answer.headers["ETag"]})

    assert (answer.status_code, again.status_code) == (200, 304)
    assert answer.headers["Cache-Control"] == "no-cache"


@pytest.mark.parametrize("path", ["/js/main.js", "/vendor/plotly.min.js", "figures/exponents"])
def test_answers_are_compressed_for_who_takes_that(
    client: TestClient, trainer: Trainer, path: str
) -> None:
    """The same content comes in fewer bytes, under a weak tag that is as good as the other, or plain where asked so."""
    if not path.startswith("/"):
        path = f"/api/v1/runs/{trainer.run_id}/{path}"
    plain = client.get(path, headers={"Accept-Encoding": "identity"})
    packed = client.get(path, headers={"Accept-Encoding": "br, gzip"})
    held = [
        client.get(path, headers={"If-None-Match": each.headers["ETag"]}).status_code
        for each in (plain, packed)
    ]

    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert packed.content == plain.content
    assert int(packed.headers["Content-Length"]) < int(plain.headers["Content-Length"]) / 2
    assert packed.headers["ETag"] == f"W/{plain.headers['ETag']}"
    assert {each.headers["Vary"] for each in (plain, packed)} == {"Accept-Encoding"}
    assert held == [304, 304]


def test_plotly_may_be_kept_for_ever(client: TestClient) -> None:
    """Under its version Plotly's script never changes; it is the installed package's own."""
    answer = client.get(f"/vendor/plotly-{assets.plotly_version()}.min.js")

    assert "immutable" in answer.headers["Cache-Control"]
    assert "plotly.js v4" in answer.text[:400]


def test_the_api_describes_itself(client: TestClient) -> None:
    """The OpenAPI document is there, for those with a token."""
    assert "/api/v1/ingest" in client.get("/api/v1/openapi.json").json()["paths"]
