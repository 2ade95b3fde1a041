"""What-if over HTTP: other scales and formats."""

from __future__ import annotations

from starlette.testclient import TestClient

from batches import Trainer, statistics


def test_scales_and_formats_of_a_run(client: TestClient, send) -> None:
    """What-if gives each format's losses by scale and the best scale, for a run and for one parameter."""
    trainer = Trainer()
    records = [
        trainer.update(
            scale=1024.0 if index < 15 else 2048.0, gradients=statistics(seed=0).to_wire()
        )
        for index in range(30)
    ]
    send(trainer.batch(records))
    path = f"/api/v1/runs/{trainer.run_id}/whatif"
    answer = client.get(path).json()
    assert answer["scale"] == 2048.0
    assert answer["flushed"]["experiments"] == 1
    assert set(answer["formats"]) == {"fp16", "bf16", "e4m3", "e5m2"}
    fp16 = answer["formats"]["fp16"]
    assert len({len(column) for column in fp16.values()}) == 1
    assert fp16["underflow_high"][0] >= fp16["underflow_high"][-1]
    assert answer["best"]["headroom_bits"] >= 1.0
    one = client.get(path, params={"parameter": "head.weight", "headroom": 3}).json()
    assert one["parameter"] == "head.weight"
    assert one["best"]["headroom_bits"] >= 3.0


def test_what_cannot_be_asked_is_said(client: TestClient, send) -> None:
    """An unknown parameter or stream, or a run without samples, gets a 404; negative headroom gets a 422."""
    trainer = Trainer()
    send(trainer.batch(trainer.updates(3)))
    path = f"/api/v1/runs/{trainer.run_id}/whatif"
    assert client.get(path).status_code == 404
    send(trainer.batch([trainer.update(gradients=statistics().to_wire())]))
    answer = client.get(path, params={"parameter": "tail.weight"})
    assert (answer.status_code, "'tail.weight'" in answer.json()["detail"]) == (404, True)
    assert client.get(path, params={"headroom": -1}).status_code == 422
    assert client.get(path, params={"stream": 9}).status_code == 404
