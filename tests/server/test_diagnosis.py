"""What is wrong with a run, as HTTP tells it."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from batches import Trainer


@pytest.mark.engines
def test_a_sick_run_is_told_what_is_wrong_with_it(client: TestClient, send) -> None:
    """The diagnosis of a run names its worst finding as the verdict, with what to change, and is fresh or not sent."""
    trainer = Trainer()
    send(trainer.batch(trainer.updates(1000, skipped=range(100, 1000, 15))))
    path = f"/api/v1/runs/{trainer.run_id}/diagnosis"
    answer = client.get(path)
    told = answer.json()
    assert told["run_id"] == str(trainer.run_id)
    assert told["severity"] == "critical"
    assert told["verdict"] == told["findings"][0]["title"]
    assert "scaler" in told["findings"][0]["fix"]
    assert told["training"]["updates"] == 1000
    assert told["training"]["sentence"].startswith("94\u202f% of your batches")
    assert client.get(path, headers={"If-None-Match": answer.headers["etag"]}).status_code == 304


@pytest.mark.engines
def test_a_healthy_run_is_told_so(client: TestClient, send) -> None:
    """A run in which nothing is wrong is healthy, and one that is not there is not found."""
    trainer = Trainer()
    send(trainer.batch([*trainer.updates(100), trainer.event("finish")]))
    told = client.get(f"/api/v1/runs/{trainer.run_id}/diagnosis").json()
    assert (told["verdict"], told["severity"], told["findings"]) == ("healthy", None, [])
    assert client.get(f"/api/v1/runs/{Trainer().run_id}/diagnosis").status_code == 404
