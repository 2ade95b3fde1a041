"""Runs are judged as their records arrive: what is found is kept with them, acknowledged and told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from ampmon import wire
from ampmon_server.app import create_app
from ampmon_server.settings import Settings
from ampmon_server.thresholds import Levels, Thresholds
from batches import Trainer
from serving import Server
from training import Trainer as RealTrainer
from waiting import wait_for


@pytest.fixture
def thresholds() -> Thresholds:
    return Thresholds()


@pytest.fixture
def app(settings: Settings, thresholds: Thresholds) -> FastAPI:
    """One that judges what arrives."""
    return create_app(replace(settings, judging=True, thresholds=thresholds))


Send = Callable[[wire.Batch], dict[str, Any]]


@pytest.fixture
def summary(client: TestClient) -> Callable[[Trainer], dict[str, Any]]:
    """The summary of a trainer's run."""
    return lambda trainer: client.get(f"/api/v1/runs/{trainer.run_id}").json()


@pytest.mark.engines
def test_the_next_acknowledgement_tells_what_was_found(
    client: TestClient, send: Send, summary: Callable[[Trainer], dict[str, Any]]
) -> None:
    """Within seconds the summary has the verdict, under a version of its own, and the next batch is told all of it."""
    trainer = Trainer()
    ack = send(trainer.batch(trainer.updates(1000, skipped=range(100, 1000, 15))))
    assert "findings" not in ack
    told = wait_for(lambda: summary(trainer) if summary(trainer)["verdict"] else None)
    assert told["severity"] == "critical"
    assert told["version"] == ack["version"] + 1
    again = send(trainer.batch([trainer.event("noted")]))
    assert again["findings"][0]["title"] == told["verdict"]
    assert again["findings"][0]["severity"] == "critical"
    (listed,) = client.get("/api/v1/runs").json()["runs"]
    assert (listed["verdict"], listed["severity"]) == (told["verdict"], "critical")
    fresh = client.get(f"/api/v1/runs/{trainer.run_id}/diagnosis").json()
    assert fresh["findings"] == again["findings"]


@pytest.mark.engines
def test_a_healthy_run_is_said_to_be(
    send: Send, summary: Callable[[Trainer], dict[str, Any]]
) -> None:
    """A run in which nothing is found is healthy, and its acknowledgements have an empty list."""
    trainer = Trainer()
    send(trainer.batch([*trainer.updates(100), trainer.event("finish")]))
    told = wait_for(lambda: summary(trainer) if summary(trainer)["verdict"] else None)
    assert (told["verdict"], told["severity"]) == ("healthy", None)
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
    """A rule that cannot judge a run is counted and logged once, and ingest and the other rules go on."""
    trainer = Trainer()
    send(trainer.batch(trainer.updates(1000, skipped=range(100, 1000, 15))))
    judge = app.state.service.judge
    wait_for(lambda: judge.failed["skip_rate"])
    send(trainer.batch(trainer.updates(10)))
    wait_for(lambda: judge.failed["skip_rate"] > 1)
    assert summary(trainer)["verdict"] is not None
    assert caplog.text.count("not judged by skip_rate") == 1
    answer = client.get(f"/api/v1/runs/{trainer.run_id}/diagnosis")
    assert answer.status_code == 200
    assert answer.json()["failed"] == ["skip_rate"]


def test_a_real_sick_training_is_told_of_while_it_runs(server: Server) -> None:
    """A training that loses every hundredth update has its verdict on the server before it ends."""
    with RealTrainer() as trainer:
        trainer.train(500)
        path = f"/api/v1/runs/{trainer.run_id}"

        def severity() -> Any:
            answer = server.request("GET", path)
            return answer.json()["severity"] if answer.status == 200 else None

        assert wait_for(severity) in {"notice", "warning", "critical"}
        assert trainer.process.poll() is None
