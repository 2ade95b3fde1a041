"""The diagnosis of a run over HTTP."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
import zstandard
from starlette.testclient import TestClient

import ampmon
from ampmon import wire
from ampmon_server.analysis.diagnosis.diagnose import diagnose
from ampmon_server.analysis.diagnosis.underflow import MEASURED_RULES
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.store import Store
from batches import Trainer
from recording import recording


@pytest.mark.storage
def test_a_diagnosis_says_what_is_wrong_with_a_sick_run(client: TestClient, send) -> None:
    """A run's diagnosis has its worst finding as the verdict, with a fix. An unchanged one gives 304."""
    trainer = Trainer()
    send(trainer.batch(trainer.updates(1000, skipped=range(100, 1000, 15))))
    path = f"/api/v1/runs/{trainer.run_id}/diagnosis"
    answer = client.get(path)
    body = answer.json()
    assert body["run_id"] == str(trainer.run_id)
    assert body["severity"] == "critical"
    assert body["verdict"] == body["findings"][0]["title"]
    assert "scaler" in body["findings"][0]["fix"]
    assert body["training"]["updates"] == 1000
    assert body["training"]["sentence"].startswith("940 of 1\u202f000 steps applied (94\u202f%)")
    assert client.get(path, headers={"If-None-Match": answer.headers["etag"]}).status_code == 304


def test_an_answer_is_compressed_as_its_reader_takes_it(client: TestClient, send) -> None:
    """An answer is compressed with zstd or gzip as the client accepts, with the same content and a weak ETag.

    A 304 has the ETag of the answer that it stands for, or caches would not find that.
    """
    trainer = Trainer()
    send(trainer.batch(trainer.updates(1000, skipped=range(100, 1000, 15))))
    for path, (takes, came, unpacked) in product(
        (f"/api/v1/runs/{trainer.run_id}/diagnosis", "/", "/vendor/plotly.min.js"),
        (
            ("gzip, deflate, br, zstd", "zstd", zstandard.decompress),
            ("gzip, deflate", "gzip", bytes),  # the client decompresses gzip itself
        ),
    ):
        plain = client.get(path, headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in plain.headers
        answer = client.get(path, headers={"Accept-Encoding": takes})
        assert answer.headers["content-encoding"] == came
        assert answer.headers["etag"] == f"W/{plain.headers['etag']}"
        assert int(answer.headers["content-length"]) < len(plain.content)
        assert unpacked(answer.content) == plain.content
        for takes_now, first in (("identity", plain), (takes, answer)):
            held = {"Accept-Encoding": takes_now, "If-None-Match": answer.headers["etag"]}
            unchanged = client.get(path, headers=held)
            assert unchanged.status_code == 304
            assert unchanged.headers["etag"] == first.headers["etag"]


@pytest.mark.storage
def test_a_healthy_run_is_called_healthy(client: TestClient, send) -> None:
    """A run without findings is healthy, and an unknown run gives 404."""
    trainer = Trainer()
    send(trainer.batch([*trainer.updates(100), trainer.event("finish")]))
    body = client.get(f"/api/v1/runs/{trainer.run_id}/diagnosis").json()
    assert (body["verdict"], body["severity"], body["findings"]) == ("healthy", None, [])
    assert client.get(f"/api/v1/runs/{Trainer().run_id}/diagnosis").status_code == 404


@pytest.mark.storage
def test_a_trainer_gets_a_request_until_it_has_measured(client: TestClient, send) -> None:
    """If the trainer allows it, a requested measurement is in acknowledgements until measured or restarted."""
    trainer = Trainer()
    path = f"/api/v1/runs/{trainer.run_id}"

    def asked() -> object:
        return client.get(f"{path}/diagnosis").json()["measurement"]

    send(trainer.batch(trainer.updates(3)))
    assert asked() is None
    refused = client.post(f"{path}/measurement")
    assert (refused.status_code, "measure_on_request" in refused.text) == (404, True)
    assert "request" not in send(trainer.batch([trainer.event("measurable", stream="scaler")]))
    assert asked() == {"asked": None, "rules": sorted(MEASURED_RULES)}
    version = client.get(path).json()["version"]
    assert client.post(f"{path}/measurement").status_code == 204
    request = asked()["asked"]  # type: ignore[index]
    assert client.get(path).json()["version"] == version + 1

    assert send(trainer.batch(trainer.updates(1)))["request"] == request
    answer = send(trainer.batch([trainer.event("measured", stream="scaler", scale=1.0)]))
    assert "request" not in answer
    assert asked() == {"asked": None, "rules": sorted(MEASURED_RULES)}
    client.post(f"{path}/measurement")
    later = Trainer(run_id=trainer.run_id)
    assert "request" not in send(later.batch(later.updates(1)))
    assert asked() is None


def test_an_interval_set_below_the_tracker_is_found_and_mended(
    store: Store, data_directory: Path
) -> None:
    """`set_growth_interval(125)` after 300 real updates stops growth. The finding's fix restores it."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = ampmon.GradScaler("cpu", init_scale=16.0)

    def train(updates: int) -> float:
        for _ in range(updates):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(1, 2)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        return float(scaler.get_scale())

    train(300)
    scaler.set_growth_interval(125)
    assert train(300) == 16.0
    recorded = recording(data_directory)
    attempt = recorded.attempt
    headers = (attempt, recorded.header())
    records = tuple(each for each in recorded.messages if isinstance(each, wire.Record))
    batch = wire.Batch(
        schema_version=wire.SCHEMA_VERSION,
        run_id=attempt.run_id,
        attempt_id=attempt.attempt_id,
        headers=headers,
        records=records,
    )
    store.ingest(batch)
    (stuck,) = diagnose(store.case(attempt.run_id), Thresholds()).findings
    assert stuck.rule == "stuck_scale"
    assert "growth_interval = 125" in stuck.title
    exec(stuck.fix, {"scaler": scaler})
    assert train(125) == 32.0
    assert train(125) == 64.0
