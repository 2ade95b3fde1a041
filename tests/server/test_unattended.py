"""Runs of which nothing arrives any more are looked at all the same, by whichever server is there then."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import update
from starlette.testclient import TestClient

from ampmon import wire
from ampmon_server.alerting.targets import Target
from ampmon_server.app import create_app
from ampmon_server.diagnosis import diagnose
from ampmon_server.settings import Settings
from ampmon_server.store import Judgement, Store, engine
from ampmon_server.tables import runs
from ampmon_server.thresholds import Thresholds
from batches import Trainer
from receiver import alerts_to
from training import wait_for


pytestmark = pytest.mark.engines

TO = alerts_to(Target(name="own", url="json://127.0.0.1/x"))
BAD = [wire.Finding(rule="skip_rate", severity="critical", title="12 skips", explanation="")]


def now() -> int:
    return time.time_ns() // 1000


def trained(store: Store, at: int | None = None, **fields: object) -> UUID:
    """A run whose only record is of now, or of ``at``."""
    trainer = Trainer(uuid4(), project="vision", name="run-7")
    store.ingest(trainer.batch([trainer.update(time=at or now())], **fields))
    return trainer.run_id


def later(store: Store, by_s: float) -> None:
    """Let that much time go by for all runs."""
    by = int(by_s * 1e6)
    moved = {name: runs.c[name] - by for name in ("last_time", "silent_after", "changed")}
    with engine.writing(store._engine) as connection:
        connection.execute(update(runs).values(moved))


@contextmanager
def serving(settings: Settings, *, tells: bool = True, **more: Any) -> Iterator[Store]:
    """The store of a server that judges."""
    app = create_app(replace(settings, judging=True, alerts=TO if tells else None, **more))
    with TestClient(app, base_url="http://127.0.0.1:8267"):
        yield app.state.service.store


@pytest.mark.parametrize("tells", [True, False], ids=["it tells somebody", "it tells nobody"])
def test_a_run_that_ended_just_before_its_server_is_judged_by_the_next(
    settings: Settings, tells: bool
) -> None:
    """A crash that nobody looked at is found by a server that starts, told if it tells, and looked at no more."""
    store = Store.open(settings)
    run_id = trained(store, ended="crashed")
    store.close()
    with serving(settings, tells=tells) as store:
        verdict = wait_for(lambda: store.run(run_id)[0].verdict, 20)
        assert verdict.startswith("The process died")
        wait_for(lambda: store.restless() == [], 5)
        assert [each.rule for each in store.alerts(run_id).deliveries] == ["crashed"] * tells


def test_an_end_is_due_until_it_is_looked_at(store: Store) -> None:
    """What ends while it is looked at is due still; a look at the end is done with it, and is no news by itself."""
    trainer = Trainer(uuid4())
    store.ingest(trainer.batch([trainer.update(time=now())]))
    before = Judgement("healthy", None, [], store.case(trainer.run_id).version)
    assert store.keep(trainer.run_id, before).change is not None
    store.ingest(trainer.batch([], ended="finished"))
    version = store.run(trainer.run_id)[0].version

    assert store.keep(trainer.run_id, before).change is None
    assert [(each.run_id, each.due) for each in store.restless()] == [(trainer.run_id, True)]
    assert store.keep(trainer.run_id, replace(before, version=version)).change is None
    assert store.restless() == []
    assert store.run(trainer.run_id)[0].version == version


def test_a_longer_patience_is_waited_out(settings: Settings) -> None:
    """A run that is silent, and not yet for as long as `silent_s` says, is looked at again when it is."""
    store = Store.open(settings)
    run_id = trained(store)
    later(store, 70)
    store.close()
    with serving(settings, thresholds=Thresholds(silent_s=75)) as store:
        assert wait_for(lambda: store.run(run_id)[0].verdict, 20) == "healthy"
        wait_for(lambda: "silent" in store.alerts(run_id).alerts, 20)
        assert store.run(run_id)[0].verdict.startswith("No record for 75 s")


def test_a_trainer_whose_clock_is_ahead_hides_no_silence(store: Store) -> None:
    """For how long nothing was heard of a run is by the server's clock, where the trainer's is ahead of it."""
    run_id = trained(store, at=now() + 3600 * 10**6)
    assert store.case(run_id).status == "running"
    later(store, 90)
    (finding,) = diagnose(store.case(run_id), Thresholds()).findings

    assert finding.title.startswith("No record for 90 s")
