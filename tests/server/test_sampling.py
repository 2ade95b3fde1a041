"""A run's sampling interval and budget, as stored and shown."""

from __future__ import annotations

from uuid import uuid4

import msgspec
import pytest
from fastapi.testclient import TestClient

from ampmon.numerics.histogram import headroom_bits
from ampmon_server.store import Store
from batches import Trainer, statistics


def sampled(trainer: Trainer, **fields: object):
    return trainer.update(gradients=statistics(seed=1).to_wire(), **fields)


def budgeted(trainer: Trainer, budget: float | None):
    """The trainer's headers with this budget."""
    attempt, stream = trainer.headers
    return attempt, msgspec.structs.replace(stream, budget=budget)


def test_a_summary_tells_the_interval(store: Store) -> None:
    """A summary has the newest sampled update's interval and budget; unsampled updates change neither."""
    trainer = Trainer()
    headers = budgeted(trainer, 0.01)
    store.ingest(trainer.batch([sampled(trainer, interval=1)], headers=headers))
    before = store.run(trainer.run_id)[0]
    assert (before.sampling_interval, before.budget, before.over_budget) == (1, 0.01, False)

    store.ingest(
        trainer.batch(
            [sampled(trainer, interval=4), sampled(trainer, interval=128, over_budget=True)],
            headers=headers,
        )
    )
    store.ingest(trainer.batch([trainer.update()], headers=headers))
    after = store.run(trainer.run_id)[0]
    assert (after.sampling_interval, after.budget, after.over_budget) == (128, 0.01, True)

    store.ingest(trainer.batch([sampled(trainer, interval=64)], headers=headers))
    assert not store.run(trainer.run_id)[0].over_budget


def test_a_client_that_does_not_tell_is_shown_as_one(store: Store) -> None:
    """Updates from an older client, without the fields, leave interval and budget unknown."""
    trainer = Trainer()
    store.ingest(trainer.batch([sampled(trainer)]))
    summary = store.run(trainer.run_id)[0]
    assert (summary.sampling_interval, summary.budget, summary.over_budget) == (None, None, False)


def test_the_summary_is_that_of_the_newest_attempt(store: Store) -> None:
    """Late records of an older attempt change neither interval nor budget."""
    first = Trainer()
    second = Trainer(run_id=first.run_id, resume_step=10)
    store.ingest(first.batch([sampled(first, interval=1)], headers=budgeted(first, 0.01)))
    store.ingest(second.batch([sampled(second, interval=16)], headers=budgeted(second, 0.02)))
    store.ingest(first.batch([sampled(first, interval=2)]))
    summary = store.run(first.run_id)[0]
    assert (summary.sampling_interval, summary.budget) == (16, 0.02)


@pytest.mark.storage
def test_what_comes_late_is_not_the_present(store: Store) -> None:
    """Neither a slow rank nor updates that fill a gap set scale and interval back."""
    ranks = [Trainer(rank=0, world_size=2)]
    ranks.append(Trainer(ranks[0].run_id, rank=1, world_size=2))
    ahead, behind = (
        [sampled(each, interval=1 + index, scale=2.0**index) for index in range(size)]
        for each, size in zip(ranks, (9, 5), strict=True)
    )
    seen = []
    for trainer, updates in (
        (ranks[1], behind[:2]),
        (ranks[0], ahead[:3]),
        (ranks[1], behind[2:4]),
        (ranks[0], ahead[6:]),
        (ranks[0], ahead[3:6]),
        (ranks[1], behind[4:]),
    ):
        store.ingest(trainer.batch(updates))
        summary = store.run(trainer.run_id)[0]
        seen.append((summary.scale, summary.sampling_interval))
    assert seen == [(2.0, 2), (4.0, 3), (4.0, 3), *[(256.0, 9)] * 3]


def test_the_interval_is_reported_by_a_rank_that_samples(store: Store) -> None:
    """The interval comes from a rank that samples, the scale from the lowest rank."""
    run_id = uuid4()
    for rank in (0, 1, 0):
        trainer = Trainer(run_id, rank, world_size=2)
        update = sampled(trainer, interval=16, scale=8.0) if rank else trainer.update(scale=2.0)
        store.ingest(trainer.batch([update]))
    summary = store.run(run_id)[0]
    assert (summary.scale, summary.sampling_interval) == (2.0, 16)


def test_shares_of_the_gradient_are_those_of_the_rank_that_charts_draw(store: Store) -> None:
    """Of replicated ranks, the lowest that samples sets the summary's shares and headroom, whichever delivers last."""
    run_id, shown = uuid4(), []
    ranks = [Trainer(run_id, rank, world_size=2) for rank in (0, 1)]
    for rank, seed in ((1, 3), (0, 1), (1, 2)):
        update = ranks[rank].update(gradients=statistics(seed=seed).to_wire())
        store.ingest(ranks[rank].batch([update]))
        shown.append(store.run(run_id)[0].headroom_bits)
    (drawn,) = headroom_bits(store.gradient_samples(run_id).on_grid.amax)
    assert shown[0] != shown[1] == shown[2] == drawn


@pytest.mark.storage
def test_the_present_goes_on_with_the_ranks_that_are_left(store: Store) -> None:
    """If the lowest rank is missing from a later start, the next rank determines the scale."""
    run_id = uuid4()
    for rank in (0, 1):
        trainer = Trainer(run_id, rank, world_size=2)
        store.ingest(trainer.batch([trainer.update(scale=8.0)]))
    again = Trainer(run_id, 1, world_size=2)
    store.ingest(again.batch([again.update(scale=4.0)]))
    assert store.run(run_id)[0].scale == 4.0


@pytest.mark.parametrize(
    ("field", "value"), [("interval", 0), ("interval", -4), ("interval", 2**53), ("interval", 1.5)]
)
def test_an_interval_that_cannot_be_is_refused(
    client: TestClient, field: str, value: object
) -> None:
    """An invalid interval gets a 422 that names the field."""
    trainer = Trainer()
    body = msgspec.to_builtins(trainer.batch([sampled(trainer)]))
    body["records"][0][field] = value
    answer = client.post("/api/v1/ingest", json=body)
    assert (answer.status_code, field in answer.text) == (422, True)


def test_the_list_and_the_run_show_it(client: TestClient, send) -> None:
    """The list of runs and the run itself both have interval, budget and over_budget."""
    trainer = Trainer()
    send(trainer.batch([sampled(trainer, interval=8)], headers=budgeted(trainer, 0.01)))
    for summary in (
        client.get("/api/v1/runs").json()["runs"][0],
        client.get(f"/api/v1/runs/{trainer.run_id}").json(),
    ):
        assert (summary["sampling_interval"], summary["budget"]) == (8, 0.01)
        assert summary["over_budget"] is False
