"""Runs of which nothing arrives any more are looked at all the same, by whichever server is there then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID, uuid4

import pytest
from sqlalchemy import select, update

from ampmon_server import judge as judging
from ampmon_server.alerting.targets import Alerts, Target
from ampmon_server.bus import Bus
from ampmon_server.diagnosis import diagnose
from ampmon_server.judge import Judge
from ampmon_server.store import Judgement, Mute, Store, engine
from ampmon_server.tables import alerts, messages, mutes, runs
from ampmon_server.thresholds import Thresholds
from ampmon_server.writer import Writer
from batches import Trainer
from receiver import alerts_to
from waiting import wait_for


pytestmark = pytest.mark.engines

TO = alerts_to(Target(name="own", url="json://127.0.0.1/x"))
HOUR = 3600 * 10**6


def now() -> int:
    return time.time_ns() // 1000


def trained(store: Store, at: int | None = None, **fields: object) -> UUID:
    """A run whose only record is of now, or of ``at``."""
    trainer = Trainer(uuid4(), project="vision", name="run-7")
    store.ingest(trainer.batch([trainer.update(time=at or now())], **fields))
    return trainer.run_id


def later(store: Store, by_s: float) -> None:
    """Let that much time go by for all runs and mutes."""
    by = int(by_s * 1e6)
    moved = {name: runs.c[name] - by for name in ("last_time", "silent_after", "changed")}
    with engine.writing(store._engine) as connection:
        connection.execute(update(runs).values(moved))
        connection.execute(update(mutes).values(until=mutes.c.until - by))


def judge(
    store: Store,
    until: Callable[[], object],
    to: Alerts | None = TO,
    thresholds: Thresholds | None = None,
) -> Judge:
    """Let a judge of a server that has just started be at work until something is so."""

    async def work() -> Judge:
        writer = Writer(1)
        newest = Judge(store, writer, Bus(), thresholds or Thresholds(), to)
        working = asyncio.create_task(newest.keep_judging())
        try:
            await asyncio.to_thread(wait_for, until, 30)
        finally:
            working.cancel()
            await asyncio.wait([working])
            newest.close()
            writer.close()
        return newest

    return asyncio.run(work())


def told(store: Store) -> set[UUID]:
    """The runs of which there are messages."""
    with engine.reading(store._engine) as connection:
        return {UUID(bytes=each) for each in connection.scalars(select(messages.c.of_run))}


@pytest.mark.parametrize("to", [TO, None], ids=["it tells somebody", "it tells nobody"])
def test_a_run_that_ended_just_before_its_server_is_judged_by_the_next(
    store: Store, to: Alerts | None
) -> None:
    """A crash that nobody looked at is found by a server that starts, told if it tells, and looked at no more."""
    run_id = trained(store, ended="crashed")
    judge(store, lambda: store.run(run_id)[0].verdict, to)

    assert store.run(run_id)[0].severity == "critical"
    assert told(store) == ({run_id} if to else set())
    assert store.restless() == []


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


@pytest.mark.parametrize("spared_s", [3600.0, 0.1])
def test_a_run_that_cannot_be_judged_is_spared(
    store: Store, monkeypatch: pytest.MonkeyPatch, spared_s: float
) -> None:
    """A run whose alert is damaged, and whose mute is over, is not looked at again and again: once in so long."""
    monkeypatch.setattr(judging, "SEEK_S", 0.05)
    monkeypatch.setattr(judging, "AGAIN_S", 0.05)
    monkeypatch.setattr(judging, "REST", 1.0)
    monkeypatch.setattr(judging, "SPARED_S", spared_s)
    run_id = trained(store, ended="crashed")
    mute, _ = store.mute(Mute.new(run_id, None, "crashed", None), "ada")
    judge(store, lambda: store.firing() == 1)
    with engine.writing(store._engine) as connection:
        connection.execute(update(alerts).values(found="{"))
    store.lift(mute)
    began = time.monotonic()
    judged = judge(store, lambda: time.monotonic() - began > 3)

    assert [each.run_id for each in store.restless()] == [run_id]
    assert (judged.failed.total() == 1) == (spared_s > 3)
    assert judged.failed.total() > 0


def test_a_longer_patience_is_waited_out(store: Store) -> None:
    """A run that is silent, and not yet for as long as `silent_s` says, is looked at again when it is."""
    run_id = trained(store)
    later(store, 90)
    verdicts: list[str | None] = []

    def found() -> bool:
        verdicts.append(store.run(run_id)[0].verdict)
        return "silent" in store.alerts(run_id).alerts

    judge(store, found, thresholds=Thresholds(silent_s=100))
    assert "healthy" in verdicts
    assert store.run(run_id)[0].verdict.startswith("No record for ")


def test_a_trainer_whose_clock_is_ahead_hides_no_silence(store: Store) -> None:
    """For how long nothing was heard of a run is by the server's clock, where the trainer's is ahead of it."""
    run_id = trained(store, at=now() + HOUR)
    assert store.case(run_id).status == "running"
    later(store, 3600 + 90)
    (finding,) = diagnose(store.case(run_id), Thresholds()).findings

    assert finding.title.startswith("No record for 61 min")


def test_what_a_mute_kept_back_is_told_once_it_ends(store: Store) -> None:
    """Of runs that died while they were muted the judge tells when a mute ended, was lifted or was cut short."""
    lifted, cut, ended, muted = (trained(store, ended="crashed") for _ in range(4))
    held, *_ = (
        store.mute(Mute.new(run_id, None, "crashed", until), "ada")[0]
        for run_id, until in (
            (lifted, None),
            (cut, None),
            (ended, now() + HOUR),
            (muted, now() + 100 * HOUR),
        )
    )
    judge(store, lambda: store.firing() == 4)
    assert (told(store), store.restless()) == (set(), [])
    store.lift(held)
    store.mute(Mute.new(cut, None, "crashed", now()), "ada")
    later(store, 99 * 3600)

    judge(store, lambda: told(store) == {lifted, cut, ended})
    assert (store.restless(), store.restless(tells=False)) == ([], [])
