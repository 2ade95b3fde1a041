"""Skips of several ranks as one row, over several pages."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

from starlette.testclient import TestClient

from ampmon import wire
from batches import Trainer


def test_pages_hold_each_skip_once_and_whole(
    client: TestClient, send: Callable[[wire.Batch], object]
) -> None:
    """Pages list each shared skip once, with all its ranks."""
    run_id, ranks, steps = uuid4(), 3, 7
    for rank in range(ranks):
        trainer = Trainer(run_id, rank, world_size=ranks)
        send(trainer.batch(trainer.updates(steps, skipped=range(steps))))
    path, told = f"/api/v1/runs/{run_id}/skips?shared=true&limit=2", []
    page = client.get(path).json()
    while page["next"] is not None:
        told += page["skips"]
        page = client.get(f"{path}&cursor={page['next']}").json()
    told += page["skips"]

    assert [each["step"] for each in told] == [*range(steps)][::-1]
    assert {each["ranks_words"] for each in told} == {"all 3 ranks"}
