"""Skips of several ranks as one row, over several pages."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

from msgspec.structs import replace
from starlette.testclient import TestClient

from ampmon import wire
from batches import START, Trainer


def test_pages_hold_each_skip_once_and_whole(
    client: TestClient, send: Callable[[wire.Batch], object]
) -> None:
    """Pages list each shared skip once, with all its ranks."""
    run_id, ranks, steps = uuid4(), 3, 7
    for rank in range(ranks):
        trainer = Trainer(run_id, rank, world_size=ranks)
        send(trainer.batch(trainer.updates(steps, skipped=range(steps))))
    path, skips = f"/api/v1/runs/{run_id}/skips?shared=true&limit=2", []
    page = client.get(path).json()
    while page["next"] is not None:
        skips += page["skips"]
        page = client.get(f"{path}&cursor={page['next']}").json()
    skips += page["skips"]

    assert [each["step"] for each in skips] == [*range(steps)][::-1]
    assert {each["ranks_words"] for each in skips} == {"all 3 ranks"}


def test_the_nearest_skip_is_found_by_step_or_by_time(
    client: TestClient, send: Callable[[wire.Batch], object]
) -> None:
    """A time stands for its step, although each rank has its own time there. The ends are found without both."""
    run_id = uuid4()
    for rank in range(2):
        trainer = Trainer(run_id, rank, world_size=2)
        updates = trainer.updates(60, skipped=[10, 30, 50])
        send(trainer.batch([replace(each, time=each.time + 7 * rank) for each in updates]))

    def found(**query: object) -> tuple[int | None, int | None]:
        answer = client.get(f"/api/v1/runs/{run_id}/skips/nearest", params=query).json()
        return answer["step"], answer["time"]

    time = START + 50_000 * 30
    step, at = found(side="after", step=10)
    assert step == 30
    assert at in {time, time + 7}
    for of_rank in (time, time + 7):
        assert found(side="after", time=of_rank)[0] == 50
        assert found(side="before", time=of_rank)[0] == 10
    assert found(side="after", time=0)[0] == found(side="after")[0] == 10
    assert found(side="before", time=time * 2)[0] == found(side="before")[0] == 50
    assert found(side="after", time=time * 2) == (None, None)
