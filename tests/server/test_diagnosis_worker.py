"""The judge: runs are diagnosed as records arrive, and acknowledgements carry the findings."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from ampmon import wire
from ampmon_server.background.diagnosis_worker import rest_s
from ampmon_server.http.app import create_app
from ampmon_server.model.thresholds import Levels, Thresholds
from ampmon_server.settings import Settings
from ampmon_server.store import Store
from batches import Trainer
from serving import Server
from training import Trainer as RealTrainer
from waiting import DEADLINE_S, wait_for


@pytest.fixture
def thresholds() -> Thresholds:
    return Thresholds()


@pytest.fixture
def app(settings: Settings, thresholds: Thresholds) -> FastAPI:
    """An app that judges runs."""
    return create_app(replace(settings, judging=True, thresholds=thresholds))


Send = Callable[[wire.Batch], dict[str, Any]]


@pytest.fixture
def summary(client: TestClient) -> Callable[[Trainer], dict[str, Any]]:
    return lambda trainer: client.get(f"/api/v1/runs/{trainer.run_id}").json()


@pytest.mark.storage
def test_the_next_acknowledgement_tells_what_was_found(
    client: TestClient, send: Send, summary: Callable[[Trainer], dict[str, Any]]
) -> None:
    """A finding appears in the run's summary under a new version, and in the next acknowledgement."""
    trainer = Trainer()
    ack = send(trainer.batch(trainer.updates(1000, skipped=range(100, 1000, 15))))
    assert "findings" not in ack
    judged = wait_for(lambda: summary(trainer) if summary(trainer)["verdict"] else None)
    assert judged["severity"] == "critical"
    assert judged["version"] == ack["version"] + 1
    again = send(trainer.batch([trainer.event("noted")]))
    assert again["findings"][0]["title"] == judged["verdict"]
    assert again["findings"][0]["severity"] == "critical"
    (listed,) = client.get("/api/v1/runs").json()["runs"]
    assert (listed["verdict"], listed["severity"]) == (judged["verdict"], "critical")
    fresh = client.get(f"/api/v1/runs/{trainer.run_id}/diagnosis").json()
    for found in fresh["findings"]:
        assert found.pop("key")
        found.pop("where")
    assert fresh["findings"] == again["findings"]


@pytest.mark.storage
def test_a_healthy_run_is_said_to_be(
    send: Send, summary: Callable[[Trainer], dict[str, Any]]
) -> None:
    """A healthy run has the verdict `healthy`, and its acknowledgements have an empty list of findings."""
    trainer = Trainer()
    send(trainer.batch([*trainer.updates(100), trainer.event("finish")]))
    judged = wait_for(lambda: summary(trainer) if summary(trainer)["verdict"] else None)
    assert (judged["verdict"], judged["severity"]) == ("healthy", None)
    assert send(trainer.batch([trainer.event("noted")]))["findings"] == []


@pytest.mark.parametrize(
    "thresholds", [Thresholds(skip_rate=cast("Levels", None))], ids=["a rule that raises"]
)
def test_a_rule_that_raises_does_no_harm(
    app: FastAPI,
    client: TestClient,
    send: Send,
    summary: Callable[[Trainer], dict[str, Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A rule that raises is counted, logged once and named in the diagnosis. Ingest and other rules continue."""
    trainer = Trainer()
    send(trainer.batch(trainer.updates(1000, skipped=range(100, 1000, 15))))
    judge = app.state.service.judge
    wait_for(lambda: judge.failed["skip_rate"])
    send(trainer.batch(trainer.updates(10)))
    wait_for(lambda: judge.failed["skip_rate"] > 1)
    assert summary(trainer)["verdict"] is not None
    assert caplog.text.count("Checking runs for findings failed: skip_rate") == 1
    answer = client.get(f"/api/v1/runs/{trainer.run_id}/diagnosis")
    assert answer.status_code == 200
    assert answer.json()["failed"] == ["skip_rate"]
    assert "(skip_rate)" in answer.json()["notices"][0]


@pytest.mark.rare
def test_a_real_sick_training_is_reported_while_it_runs(server: Server) -> None:
    """A real training with skips has a verdict before it ends."""
    with RealTrainer() as trainer:
        trainer.train(500)
        path = f"/api/v1/runs/{trainer.run_id}"

        def severity() -> Any:
            answer = server.request("GET", path)
            return answer.json()["severity"] if answer.status == 200 else None

        assert wait_for(severity) in {"notice", "warning", "critical"}
        assert trainer.process.poll() is None


def test_a_look_that_waits_for_the_writer_is_not_rested_for(
    app: FastAPI,
    client: TestClient,
    send: Send,
    summary: Callable[[Trainer], dict[str, Any]],
) -> None:
    """Time spent waiting for another write does not count as the judge's work."""
    service = app.state.service
    trainer, held, over = Trainer(), threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        assert over.wait(DEADLINE_S)

    send(trainer.batch(trainer.updates(10)))
    client.portal.start_task_soon(service.writer.run, hold)
    assert held.wait(DEADLINE_S)
    before = wait_for(lambda: service.judge.seconds)  # it has judged, and waits to write
    began = time.monotonic()
    wait_for(lambda: time.monotonic() > began + 1.0)
    over.set()
    wait_for(lambda: summary(trainer)["verdict"])
    assert service.judge.seconds - before < 1.0


def test_whatever_goes_wrong_is_counted_and_the_judge_goes_on(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """An error in the search for runs is counted once, and the next record is judged."""
    searched = []
    runs_to_judge = Store.runs_to_judge

    def failing(store: Store, **how: Any) -> Any:
        searched.append(store)
        if len(searched) == 1:
            raise RuntimeError("planted")
        return runs_to_judge(store, **how)

    monkeypatch.setattr(Store, "runs_to_judge", failing)
    app, send, summary = map(request.getfixturevalue, ("app", "send", "summary"))
    wait_for(lambda: app.state.service.judge.failed["RuntimeError"])
    trainer = Trainer()
    send(trainer.batch(trainer.updates(10)))
    assert wait_for(lambda: summary(trainer)["verdict"]) == "healthy"


@given(took=st.floats(0, 100), late=st.floats(0, 1e6), later=st.floats(0, 1e6))
def test_the_judge_rests_less_the_longer_runs_wait(took: float, late: float, later: float) -> None:
    """The judge rests 40 times its last work while runs wait up to 10 s, falling to once its work at 20 s."""
    rests = [rest_s(took, each) for each in sorted([late, later])]
    assert 40 * took * (1 + 1e-9) >= rests[0] >= rests[1] * (1 - 1e-9) >= took * (1 - 1e-9)
    assert rest_s(took, 10.0) == 40 * took
    assert rest_s(took, 20.0) == took
