"""`/metrics` counts events with a bounded number of series and names no run by default."""

from __future__ import annotations

import json
import random
import re
import string
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args
from urllib.parse import quote
from uuid import uuid4

import msgspec
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from ampmon import wire
from ampmon_server.alerting.messages import TROUBLES, DeliveryOutcome
from ampmon_server.alerting.targets import Target
from ampmon_server.http.app import create_app
from ampmon_server.http.metrics import Reason
from ampmon_server.http.routes.health import RunMetrics
from ampmon_server.settings import Settings
from ampmon_server.store import Judgement
from batches import Trainer, now
from receiver import alerts_to
from serving import Server


DASHBOARD = Path(__file__).parents[2] / "docs" / "deploy" / "grafana.json"
INGEST = "/api/v1/ingest"
MSGPACK = {"Content-Type": "application/msgpack"}

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: str) -> Samples:
    """Each series by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape(client: TestClient) -> Samples:
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return samples(answer.text)


def value(of: Samples, name: str, **labels: str) -> float:
    return of.get((f"ampmon_{name}", tuple(sorted(labels.items()))), 0.0)


def test_what_happens_is_counted(client: TestClient) -> None:
    """An accepted batch counts once with its records and bytes, and a rejected one by its reason."""
    trainer = Trainer()
    batch = trainer.batch(trainer.updates(7))
    body = wire.encode(batch)
    before = scrape(client)
    assert client.post(INGEST, content=body, headers=MSGPACK).status_code == 200
    assert client.post(INGEST, content=b"\xc1", headers=MSGPACK).status_code == 400
    assert client.post(INGEST, content=body).status_code == 415
    assert client.get(f"/api/v1/runs/{uuid4()}").status_code == 404
    after = scrape(client)

    def more(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    assert more("ingest_batches_total") == 1
    assert more("ingest_records_total") == len(batch.records) >= 7
    assert more("ingest_bytes_total") == len(body)
    assert more("ingest_refused_total", reason="damaged") == 1
    assert more("ingest_refused_total", reason="type") == 1
    run = "/api/v1/runs/{run_id}"
    assert more("http_requests_total", method="GET", route=run, status="4xx") == 1
    assert more("http_requests_total", method="POST", route=INGEST, status="2xx") == 1
    assert more("http_request_duration_seconds_count", method="POST", route=INGEST) == 3
    assert value(after, "writers_waiting") == value(after, "writers_waiting_bytes") == 0


def test_records_that_build_on_nothing_are_counted_as_such(client: TestClient) -> None:
    """Batches without required headers and with invalid values count under separate reasons."""
    trainer = Trainer()
    trainer.batch(trainer.updates(1))
    later = trainer.batch(trainer.updates(1))
    bare = wire.encode(
        wire.Batch(
            schema_version=later.schema_version,
            run_id=later.run_id,
            attempt_id=later.attempt_id,
            records=later.records,
        )
    )
    assert client.post(INGEST, content=bare, headers=MSGPACK).status_code == 409
    answer = client.post(
        INGEST, content=b'{"records": 1}', headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 422
    counted = scrape(client)

    assert value(counted, "ingest_refused_total", reason="header") == 1
    assert value(counted, "ingest_refused_total", reason="invalid") == 1


def test_what_is_alerted_on_begins_at_nothing(client: TestClient) -> None:
    """Counters used in alerts have all their labels at 0 from the start, so that the first event is an increase."""
    fresh = scrape(client)

    for name, label, values in (
        ("ingest_refused_total", "reason", get_args(Reason)),
        ("limited_total", "limit", ("requests", "streams")),
        ("alert_messages_total", "outcome", ("sent", *TROUBLES)),
    ):
        series = {key: value for key, value in fresh.items() if key[0] == f"ampmon_{name}"}
        assert series == {(f"ampmon_{name}", ((label, each),)): 0.0 for each in values}


def test_messages_that_are_held_back_do_not_wait(client: TestClient, app: FastAPI) -> None:
    """The metric of waiting messages counts due and failed ones, not those held back by the hourly limit."""
    store, to = app.state.service.store, alerts_to(Target(name="own", url="json://127.0.0.1/x"))
    bad = wire.Finding(rule="skip_rate", severity="critical", title="bad", explanation="")

    def send_alert() -> None:
        trainer = Trainer(uuid4())
        store.ingest(trainer.batch([trainer.update(time=now())]))
        store.keep(trainer.run_id, Judgement("bad", "critical", [bad]), to)

    for _ in range(3):
        send_alert()
    due = value(scrape(client), "alert_messages_waiting")
    store.settle(store.take("own", 1, None), DeliveryOutcome())
    assert store.take("own", 1, None) is None
    held = value(scrape(client), "alert_messages_waiting")
    waiting = store.target_states()["own"].waiting
    send_alert()
    store.settle(store.take("own", 2, None), DeliveryOutcome("unreachable"))
    failed = value(scrape(client), "alert_messages_waiting")

    assert (due, held, waiting, failed) == (3, 0, 2, 1)


def test_no_path_makes_a_series(client: TestClient, stranger: TestClient) -> None:
    """Random paths and methods create no new series."""
    letters = random.Random(0)

    def odd() -> str:
        return quote("".join(letters.choices(string.ascii_letters + "/.%{}~\n\x1b ", k=12)))

    def ask(times: int) -> None:
        for _ in range(times):
            for method in ("GET", "POST", "TRACE", "BREW", odd().encode().hex().upper()):
                for path in (
                    f"/{odd()}",
                    f"/api/v1/runs/{uuid4()}",
                    f"/js/1/{odd().encode().hex()}",
                ):
                    client.request(method, path)
                    stranger.request(method, path)

    ask(2)
    before = set(scrape(client))
    before |= set(scrape(client))  # includes the series of the first scrape
    ask(10)
    after = scrape(client)

    assert set(after) == before
    labels = {value for _, pairs in after for name, value in pairs if name == "route"}
    assert {"other", "/js/{version}/{name}", "/api/v1/runs/{run_id}"} <= labels
    assert value(after, "http_requests_total", method="other", route="other", status="4xx") >= 20


def test_nobody_is_named(client: TestClient) -> None:
    """No project, run, owner or token appears in the metrics."""
    trainer = Trainer(uuid4(), project="secret-project", name="secret-name")
    batch = trainer.batch(trainer.updates(3))
    assert client.post(INGEST, content=wire.encode(batch), headers=MSGPACK).status_code == 200
    (run,) = client.get("/api/v1/runs").json()["runs"]
    client.get(f"/api/v1/runs/{trainer.run_id}?stream={trainer.run_id}")
    text = client.get("/metrics").text
    token = client.headers["Authorization"].split()[1]

    assert (run["project"], run["name"]) == ("secret-project", "secret-name")
    for name in ("secret-project", "secret-name", str(trainer.run_id), token):
        assert name not in text
    assert not re.search(rf'"{re.escape(run["owner"])}"', text)


def test_two_apps_share_nothing(client: TestClient, tmp_path: Path) -> None:
    """Two apps in one process count separately."""
    client.get("/healthz")
    other = create_app(Settings(data_directory=tmp_path / "other", judging=False))
    with TestClient(other, base_url=str(client.base_url)) as other_client:
        token = other.state.service.keys.token
        found = scrape_with(other_client, token)
    key = {"method": "GET", "route": "/healthz", "status": "2xx"}

    assert value(scrape(client), "http_requests_total", **key) == 1
    assert value(found, "http_requests_total", **key) == 0


def scrape_with(client: TestClient, token: str) -> Samples:
    return samples(client.get("/metrics", headers={"Authorization": f"Bearer {token}"}).text)


def test_a_server_process_tells_of_itself(new_server: Callable[..., Server]) -> None:
    """A real server exposes metrics of its process, database file, streams and judge, and needs the token."""
    server = new_server()
    trainer = Trainer()
    body = wire.encode(trainer.batch(trainer.updates(20)))
    assert server.request("POST", INGEST, body=body, headers=MSGPACK).status == 200
    stream = server.request("GET", "/api/v1/live", preload_content=False)
    news = stream.stream(16)
    next(news)  # keeps a reference, since an unreferenced stream is closed
    page = samples(server.request("GET", "/metrics").data.decode())
    news.close()
    plain = server.request("GET", "/metrics", headers={"Authorization": ""})

    assert plain.status == 401
    assert value(page, "event_streams") == 1
    files = (server.directory / "server").glob("ampmon.db*")
    sizes = [each.stat().st_size for each in files if each.name.endswith((".db", "-wal"))]
    assert value(page, "database_bytes") == sum(sizes)
    assert len(sizes) == 2
    assert [value(page, "ready", part=part) for part in ("database", "schema", "bus")] == [1, 1, 1]
    assert page["process_resident_memory_bytes", ()] > 10e6
    assert {"ampmon_judgements_total", "ampmon_judgement_seconds_total"} <= {
        name for name, _ in page
    }


def expressions(panels: list[dict[str, object]]) -> list[str]:
    """Every expression of the panels."""
    return [
        target["expr"]
        for panel in panels
        for target in panel.get("targets", [])  # type: ignore[attr-defined]
    ]


def named(expression: str) -> set[str]:
    """The metrics in an expression."""
    return set(re.findall(r"\b(?:ampmon|process)_\w+", expression))


def exposed(client: TestClient) -> set[str]:
    """The metric names of `/metrics`, including counters without samples."""
    text = client.get("/metrics").text
    declared = {
        f"{family.name}{end}"
        for family in text_string_to_metric_families(text)
        for end in {
            "counter": ("_total",),
            "histogram": ("_bucket", "_count", "_sum"),
        }.get(family.type, ("",))
    }
    return {name for name, _ in samples(text)} | declared


def test_the_dashboard_shows_what_there_is(client: TestClient) -> None:
    """The Grafana dashboard uses only exposed metrics, and its panels have unique ids."""
    board = json.loads(DASHBOARD.read_text())
    panels = board["panels"]
    asked = expressions(panels)

    assert len({panel["id"] for panel in panels}) == len(panels) >= 8
    assert all(named(each) for each in asked)
    assert set().union(*map(named, asked)) <= exposed(client)
    assert named("rate(ampmon_nothing_total[5m])") - exposed(client) == {"ampmon_nothing_total"}
    assert all(panel["title"] and panel["gridPos"]["w"] <= 24 for panel in panels)


def test_the_manual_names_every_metric(client: TestClient) -> None:
    """docs/operations.md names each ampmon metric and each reason for rejecting a batch."""
    page = (DASHBOARD.parents[1] / "operations.md").read_text()
    own = {name for name, _ in samples(client.get("/metrics").text) if name.startswith("ampmon_")}
    store = client.app.state.service.store  # type: ignore[attr-defined]
    own |= {each.name for each in RunMetrics(store, 1, None).collect()}
    plain = {re.sub(r"_(bucket|count|sum)$", "", name) for name in own}
    plain |= {name for name in exposed(client) if name.endswith("_total") and "ampmon" in name}
    plain = {name for name in plain if f"{name}_total" not in plain}

    assert {name for name in plain if f"`{name}" not in page} == set()
    assert {reason for reason in get_args(Reason) if f"`{reason}`" not in page} == set()


def test_running_runs_are_shown_where_that_is_asked_for(settings: Settings) -> None:
    """If enabled, metrics show the newest running runs of the token's projects, up to the limit."""
    with TestClient(
        create_app(replace(settings, run_metrics=2)), base_url="http://127.0.0.1:8267"
    ) as client:
        service = client.app.state.service
        client.headers["Authorization"] = f"Bearer {service.keys.token}"
        moment = now()
        trainers = [
            Trainer(name=f"run {index}", project="ab"[index % 2], started=moment + index)
            for index in range(4)
        ]
        for index, trainer in enumerate(trainers):
            updates = trainer.updates(5 + index, skipped=[2])
            service.store.ingest(trainer.batch([replace_time(each, moment) for each in updates]))
        first, second, third, fourth = (
            (("name", t.name), ("project", t.project), ("run", str(t.run_id))) for t in trainers
        )
        shown = scrape(client)
        assert shown["ampmon_run_scale", fourth] == 1024.0
        assert shown["ampmon_run_updates_total", third] == 7
        assert shown["ampmon_run_skipped_updates_total", third] == 1
        assert shown["ampmon_runs_running", ()] == 4
        assert not any(labels in (first, second) for _, labels in shown)

        service.store.ingest(trainers[3].batch([trainers[3].event("finish")]))
        wanted = {"name": "a", "owner": "ada", "projects": ["a"], "scopes": ["read"]}
        token = client.post("/api/v1/tokens", json=wanted)
        assert token.status_code == 201, token.text
        client.headers["Authorization"] = f"Bearer {token.json()['token']}"
        shown = scrape(client)
        assert {labels for name, labels in shown if name == "ampmon_run_updates_total"} == {
            first,
            third,
        }
        assert shown["ampmon_runs_running", ()] == 2


def replace_time(update: wire.Update, time: int) -> wire.Update:
    return msgspec.structs.replace(update, time=time)


@pytest.mark.engines
def test_only_a_file_has_a_size(client: TestClient, database: str | None) -> None:
    """Only SQLite reports a database size. Both engines report ready parts and the time of the check."""
    counted = scrape(client)

    assert (("ampmon_database_bytes", ()) in counted) is (database is None)
    assert [value(counted, "ready", part=part) for part in ("database", "schema", "bus")] == [
        1,
        1,
        1,
    ]
    assert value(counted, "ready_check_seconds") > 0


def test_what_the_follower_cannot_read_is_reported(client: TestClient, app: FastAPI) -> None:
    """If changes of other processes cannot be read, the bus is not ready. The answer hides the cause."""

    class Deaf:
        trouble = "connection to host db.internal as user ampmon failed"

    service = app.state.service
    service.follower = Deaf()
    answer = client.get("/readyz")
    counted = scrape(client)
    service.follower = None

    assert answer.status_code == 503
    assert answer.json()["parts"]["bus"] == answer.json()["detail"] != "ok"
    assert "db.internal" not in answer.text
    assert value(counted, "ready", part="bus") == 0


@pytest.mark.parametrize("what", ["database", "schema"])
def test_what_is_not_ready_is_reported(client: TestClient, app: FastAPI, what: str) -> None:
    """`/readyz` and `/metrics` name the part that is not ready. `/readyz` hides the file name."""
    ready = client.get("/readyz")
    assert ready.json()["parts"] == {"database": "ok", "schema": "ok", "bus": "ok"}
    store = app.state.service.store
    if what == "database":
        store._engine.dispose()
        file = Path(str(store._engine.url.database))
        file.rename(file.with_name("away"))
        file.mkdir()
    else:
        with store._engine.begin() as connection:
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    answer = client.get("/readyz")
    parts = answer.json()["parts"]

    assert answer.status_code == 503
    assert (parts["bus"], parts["database"] == "ok") == ("ok", what == "schema")
    assert answer.json()["detail"] == parts[what] != "ok"
    assert "ampmon.db" not in answer.text
    assert value(scrape(client), "ready", part=what) == 0
    assert value(scrape(client), "ready", part="bus") == 1
