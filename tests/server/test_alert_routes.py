"""Alerts over HTTP: who may acknowledge and mute them, what is listed, and how silent runs are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from ampmon import wire
from ampmon_server.alerting.messages import DeliveryOutcome
from ampmon_server.alerting.targets import After, AlertPolicy, Target
from ampmon_server.http.app import create_app
from ampmon_server.settings import Settings
from ampmon_server.store import Judgement, Mute, Sender, Store
from ampmon_server.store.schema.global_tables import messages
from ampmon_server.store.schema.tables import runs
from batches import Trainer, now
from receiver import alerts_to, written
from serving import Server
from threaded_server import ThreadedServer
from typed import typed
from waiting import wait_for


OWN = Target(name="own", url="json://user:hunter2@127.0.0.1/x")
ELSE = Target(name="else", url="json://127.0.0.1/x")
"""A target that only another server has, so this one sends nothing to it."""
Client = Callable[..., TestClient]


@pytest.fixture
def app(settings: Settings) -> FastAPI:
    """An app with an alert target."""
    return create_app(replace(settings, alerts=alerts_to(OWN)))


@pytest.fixture
def store(app: FastAPI, stranger: TestClient) -> Store:
    return app.state.service.store


def alarmed(store: Store, project: str = "vision", severity: wire.Severity = "critical") -> UUID:
    """A run owned by ada with a firing alert."""
    trainer = Trainer(uuid4(), project=project, name="run-7")
    records = [trainer.update(time=now())]
    store.ingest(trainer.batch(records), Sender("ada"))
    judge(store, trainer.run_id, severity)
    return trainer.run_id


def judge(store: Store, run_id: UUID, severity: wire.Severity) -> None:
    finding = wire.Finding(rule="skip_rate", severity=severity, title="12 skips", explanation="")
    at_once = alerts_to(ELSE, policy=AlertPolicy(after_s=After(warning=0)))
    store.keep(run_id, Judgement("bad", severity, [finding]), at_once)


def test_a_run_tells_how_its_alerts_stand(client: TestClient, store: Store) -> None:
    """A run's answer shows its alerts' states and deliveries. Acknowledging one advances the version."""
    path = f"/api/v1/runs/{alarmed(store)}"
    before = client.get(path).json()
    assert client.post(f"{path}/alerts/skip_rate/acknowledge").status_code == 204
    after = client.get(path).json()
    (alert,) = before["alerts"]
    (acknowledged,) = after["alerts"]

    assert (alert["state"], alert["title"], alert["acknowledged"]) == ("firing", "12 skips", None)
    (delivery,) = alert["deliveries"]
    assert (delivery["target"], delivery["sent"], delivery["trouble"]) == ("else", None, None)
    assert acknowledged["acknowledged_by"] == "the operator"
    assert (before["firing"], after["firing"]) == (1, 0)
    assert after["version"] == before["version"] + 1


def test_what_got_worse_while_muted_was_sent_before(client: TestClient, store: Store) -> None:
    """An alert that worsens while muted keeps its time and deliveries. Once unmuted, it queues a new message."""
    run_id = alarmed(store, severity="warning")
    path = f"/api/v1/runs/{run_id}"
    taken = store.take("else", 20, None)
    assert taken is not None
    store.settle(taken, DeliveryOutcome())
    (before,) = client.get(path).json()["alerts"]
    mute, _ = store.mute(Mute(run_id, None, None, None), "ada")
    judge(store, run_id, "critical")
    (worse,) = client.get(path).json()["alerts"]
    assert worse["severity"] == "critical"
    assert (worse["fired"], worse["deliveries"]) == (before["fired"], before["deliveries"])
    assert worse["deliveries"][0]["sent"] is not None

    store.lift(mute)
    judge(store, run_id, "critical")
    (heard,) = client.get(path).json()["alerts"]
    assert (heard["fired"], heard["deliveries"][0]["sent"]) == (before["fired"], None)


def test_who_may_take_care_of_an_alert(holding: Client, store: Store) -> None:
    """Only the run's owner with `ingest`, or `admin`, may acknowledge an alert, mute it or lift the mute.

    A token that may not read learns nothing of the run.
    """
    run_id = alarmed(store)
    path = f"/api/v1/runs/{run_id}/alerts/skip_rate/acknowledge"
    mute = {"run_id": str(run_id), "rule": "skip_rate"}
    for known, status in (
        (holding("ingest", "read", owner="eve"), 403),
        (holding("ingest", owner="eve"), 404),
        (holding("read", owner="ada"), 403),
        (holding("ingest", owner="ada"), 204),
        (holding("admin", owner="eve"), 204),
    ):
        assert known.post(path).status_code == status
        made = known.post("/api/v1/mutes", json=mute)
        assert made.status_code == {204: 201}.get(status, status)
        if status == 204:
            held = made.json()["mute_id"]
            assert (
                holding("ingest", "read", owner="eve").delete(f"/api/v1/mutes/{held}").status_code
                == 403
            )
            unseen = holding("ingest", owner="eve").delete(f"/api/v1/mutes/{held}")
            assert (unseen.status_code, str(run_id) in unseen.text) == (404, False)
            assert known.delete(f"/api/v1/mutes/{held}").status_code == 204
    assert store.mutes() == []


def test_who_may_mute_more_than_a_run(holding: Client) -> None:
    """Muting a project or everything, and lifting that mute, need `admin` over it."""
    kept, ada = (
        holding("admin", owner="eve", projects=["vision"]),
        holding("ingest", "read", owner="ada"),
    )
    admin = holding("admin", owner="eve")
    for body, least in (({"project": "vision"}, kept), ({"rule": "silent"}, admin), ({}, admin)):
        assert ada.post("/api/v1/mutes", json=body).json()["scope"] == "admin"
        if least is admin:
            assert kept.post("/api/v1/mutes", json=body).status_code == 403
        made = least.post("/api/v1/mutes", json=body)
        assert made.status_code == 201
        path = f"/api/v1/mutes/{made.json()['mute_id']}"
        assert ada.delete(path).status_code == 403
        assert least.delete(path).status_code == 204


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"until": 1}, "until"),
        ({"run_id": str(uuid4()), "project": "vision"}, "project"),
        ({"rule": "Not a rule"}, "rule"),
        ({"everything": True}, "body"),
        ({"run_id": "no id"}, "run_id"),
    ],
)
def test_a_mute_that_cannot_be_is_refused(client: TestClient, body: Any, field: str) -> None:
    """A mute in the past, with both run and project, or with an unknown field or bad value gets 422."""
    answer = client.post("/api/v1/mutes", json=body)

    assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_lists_are_kept_to_projects(holding: Client, store: Store) -> None:
    """Alerts, messages and mutes are listed only for the token's projects. Targets need `admin` and hide secrets."""
    mine, hidden = alarmed(store), alarmed(store, "speech")
    admin, known = holding("admin", owner="eve"), holding("read", owner="ada", projects=["vision"])
    waiting = known.get("/api/v1/alerts/messages?sent=false").json()
    assert [each["run_id"] for each in waiting["messages"]] == [str(mine)]
    assert waiting["total"] == 1
    for run_id in (mine, hidden):
        admin.post("/api/v1/mutes", json={"run_id": str(run_id)})

    assert [each["run_id"] for each in known.get("/api/v1/alerts").json()["alerts"]] == [str(mine)]
    (mute,) = known.get("/api/v1/mutes").json()["mutes"]
    assert (mute["project"], mute["name"], mute["owner"]) == ("vision", "run-7", "ada")
    assert len(admin.get("/api/v1/alerts").json()["alerts"]) == 2
    assert known.get("/api/v1/alerts/targets").status_code == 403
    listed = admin.get("/api/v1/alerts/targets")
    assert "hunter2" not in listed.text
    (target,) = listed.json()["targets"]
    assert (target["name"], target["kind"], target["least"]) == ("own", "json", "warning")


def test_an_open_alert_is_listed_as_its_run_shows_it(client: TestClient, store: Store) -> None:
    """The list shows an open alert as its run does, plus its run and newest mute. A lifted mute is not shown."""
    run_id = alarmed(store)
    project, _ = store.mute(Mute(None, "vision", None, None), "ada")
    made = client.post("/api/v1/mutes", json={"run_id": str(run_id), "rule": "skip_rate"}).json()
    listed = client.get("/api/v1/alerts").json()
    (own,) = client.get(f"/api/v1/runs/{run_id}").json()["alerts"]
    (alert,) = listed["alerts"]

    assert listed["configured"] is True
    assert alert == {
        **own,
        **{name: alert[name] for name in ("run_id", "project", "name", "owner")},
    }
    assert (alert["run_id"], alert["name"], alert["owner"]) == (str(run_id), "run-7", "ada")
    assert alert["mute"]["mute_id"] == made["mute_id"]
    for each in (made["mute_id"], project.mute_id):
        client.delete(f"/api/v1/mutes/{each}")
    assert client.get("/api/v1/alerts").json()["alerts"][0]["mute"] is None


def test_messages_tell_what_was_sent_and_what_failed(client: TestClient, store: Store) -> None:
    """Messages list target, error, attempts and next attempt, but not the target's URL, which is secret."""
    run_id = alarmed(store)
    path = "/api/v1/alerts/messages?sent="
    first = store.take("else", 20, None)
    assert first is not None
    store.settle(first, DeliveryOutcome("refused", 500))
    answer = client.get(f"{path}false")
    (failed,) = answer.json()["messages"]
    assert (failed["run_id"], failed["target"], failed["rule"]) == (
        str(run_id),
        "else",
        "skip_rate",
    )
    assert failed["title"] == "ampmon critical: run-7: 12 skips"
    assert (failed["attempts"], failed["trouble"]) == (1, "it refused the message (500)")
    assert failed["due"] > failed["made"]
    assert client.get(f"{path}true").json() == {"messages": [], "total": 0}
    store.settle(first, DeliveryOutcome())
    listed = client.get(f"{path}true&limit=1")
    (sent,) = listed.json()["messages"]
    assert (sent["sent"] is not None, sent["trouble"], sent["due"]) == (True, None, None)
    assert not any("json://" in each.text or "hunter2" in each.text for each in (answer, listed))
    assert client.get("/api/v1/alerts/messages").json()["field"] == "sent"
    assert client.get(f"{path}true&limit=0").status_code == 422


def test_without_targets_nothing_is_said(settings: Settings) -> None:
    """A server without targets reports alerts as not configured, and a run's alerts as null."""
    app = create_app(settings)
    with TestClient(app, base_url="http://127.0.0.1:8267") as client:
        client.headers["Authorization"] = f"Bearer {app.state.service.keys.token}"
        run_id = alarmed(app.state.service.store)
        assert client.get(f"/api/v1/runs/{run_id}").json()["alerts"] is None
        assert client.get("/api/v1/alerts").json()["configured"] is False
        assert client.get("/api/v1/alerts/targets").json() == {"targets": []}


def test_a_run_that_fell_silent_while_no_server_ran_is_found(settings: Settings) -> None:
    """A starting server judges a run that fell silent while no server ran."""
    store = Store.open(settings)
    trainer = Trainer(uuid4(), name="run-7")
    store.ingest(trainer.batch([trainer.update(time=now() - 300 * 10**6)]))
    with store._engine.begin() as connection:
        connection.execute(runs.update().values(silent_after=1))
    store.close()
    app = create_app(replace(settings, judging=True, alerts=alerts_to(OWN)))
    with TestClient(app, base_url="http://127.0.0.1:8267"):
        opened = app.state.service.store
        stands = wait_for(lambda: opened.alerts(trainer.run_id).alerts)
    assert stands["silent"][0].state == "pending"


def test_what_is_open_is_listed_in_the_terminal(server: Server) -> None:
    """`ampmon alerts list` says that no alert is open and that the server has no targets."""
    code, printed, _ = typed("alerts", "list", "--data-dir", server.directory)
    assert (code, printed) == (0, "No alert is open.\n\nThe server has no targets.\n")


def test_targets_that_cannot_be_listed_are_an_error(tmp_path: Path) -> None:
    """`ampmon alerts list` hides the targets from a token without `admin`, but reports any other error."""
    server = ThreadedServer(tmp_path, alerts=alerts_to(OWN), judging=False)
    reading, service = tmp_path / "reading", server._service
    written(reading, service.tokens.new("reader", "ada", ["read"])[0])
    where = ["--url", f"http://127.0.0.1:{server.port}", "--data-dir", str(tmp_path)]
    message = dict.fromkeys(["project", "rule", "title", "body", "kind"], "")
    ids = {"message_id": b"1", "of_run": b"1", "target": "own", "made": now()}
    try:
        with service.store._engine.begin() as connection:
            connection.execute(messages.insert().values(trouble="unknown", **ids, **message))
        assert typed("alerts", "list", *where, "--token-file", reading).code == 0
        code, _, err = typed("alerts", "list", *where)
    finally:
        server.close()
    assert code == 2
    assert "ampmon alerts list: " in err


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--alerts", "none.toml"], "none.toml: No such file"),
        (["--public-url", "https://ampmon.example.org"], "pass --alerts FILE too"),
        (["--alerts", "none.toml", "--no-judging"], "--no-judging turns them off"),
    ],
)
def test_a_server_that_could_tell_nobody_does_not_start(
    options: list[str], reason: str, tmp_path: Path
) -> None:
    """`ampmon serve` with unusable alert options exits with code 2 and a one-line error."""
    code, _, err = typed("serve", "--port", "0", "--data-dir", tmp_path, *options)
    (line,) = err.splitlines()

    assert code == 2
    assert line.startswith("ampmon serve: ")
    assert reason in line
