"""Runs that stopped reporting are judged anyway, by whichever server runs then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import select, update

from ampmon import wire
from ampmon_server.alerting.targets import Alerts, Target
from ampmon_server.analysis.diagnosis.diagnose import diagnose
from ampmon_server.background import diagnosis_worker as judging
from ampmon_server.background.bus import Bus
from ampmon_server.background.diagnosis_worker import DiagnosisWorker
from ampmon_server.background.writer import Writer
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.store import Edit, Judgement, Kept, Mute, Store
from ampmon_server.store.engine import engine
from ampmon_server.store.schema.global_tables import messages, mutes
from ampmon_server.store.schema.tables import alerts, runs
from batches import Trainer, now
from doubles import ManualClock
from receiver import alerts_to
from waiting import wait_for


TO = alerts_to(Target(name="own", url="json://127.0.0.1/x"))
HOUR = 3600 * 10**6


def trained(store: Store, at: int | None = None, **fields: object) -> UUID:
    """A run whose only record is of now, or of ``at`` in microseconds."""
    trainer = Trainer(uuid4(), project="vision", name="run-7")
    store.ingest(trainer.batch([trainer.update(time=at or now())], **fields))
    return trainer.run_id


def later(store: Store, by_s: float) -> None:
    """Move all runs and mutes ``by_s`` seconds into the past."""
    by = int(by_s * 1e6)
    moved = {name: runs.c[name] - by for name in ("last_time", "silent_after", "changed")}
    with engine.writing(store._engine) as connection:
        connection.execute(update(runs).values(moved))
        connection.execute(update(mutes).values(until=mutes.c.until - by))


@pytest.fixture(autouse=True)
def _seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker notice within 10 ms that its clock was moved."""
    monkeypatch.setattr(judging, "POLL_S", 0.01)


class Watched(DiagnosisWorker):
    """A diagnosis worker on a manual clock."""

    def __init__(self, store: Store, to: Alerts | None = TO, silent_s: float = 60.0) -> None:
        self.clock = ManualClock()
        self.store = store
        thresholds = Thresholds(silent_s=silent_s)
        super().__init__(store, Writer(1), Bus(), thresholds, to, self.clock)

    def until(self, condition: Callable[[], object]) -> None:
        """Work until ``condition`` holds, moving the clock to each diagnosis that is due."""

        def so() -> object:
            due = list(self._due.values())  # read first: the condition may come true meanwhile
            if (found := condition()) or not due:
                return found
            wait_s = max(min(due) - self.clock.now_s, 0.0)
            later(self.store, wait_s)
            self.clock.advance(wait_s)
            return None

        async def work() -> None:
            working = asyncio.create_task(self.keep_judging())
            try:
                await asyncio.to_thread(wait_for, so)
            finally:
                working.cancel()
                await asyncio.wait([working])

        asyncio.run(work())

    def seek(self, after_s: float) -> None:
        """Advance the clock and wait for the next query for runs to judge."""
        self.clock.advance(after_s)
        before = self._silent  # the next query replaces it
        self.until(lambda: self._silent is not before)


@contextmanager
def judging_by(store: Store, **options: Any) -> Iterator[Watched]:
    """The worker of a server that has just started."""
    judge = Watched(store, **options)
    yield judge
    judge.close()
    judge._writer.close()


def judge(store: Store, until: Callable[[], object], to: Alerts | None = TO) -> None:
    """Run the worker of a server that has just started until a condition holds."""
    with judging_by(store, to=to) as judge:
        judge.until(until)


def notified(store: Store) -> set[UUID]:
    """The runs that have messages."""
    with engine.reading(store._engine) as connection:
        return {UUID(bytes=each) for each in connection.scalars(select(messages.c.of_run))}


def examined(store: Store, run_id: UUID) -> Judgement:
    """What a server finds that reads the run now."""
    case = store.case(run_id)
    found = diagnose(case, Thresholds())
    return Judgement(found.verdict, found.severity, found.findings, case.version)


@pytest.mark.parametrize("to", [TO, None], ids=["it tells somebody", "it tells nobody"])
def test_a_run_that_ended_just_before_its_server_is_judged_by_the_next(
    store: Store, to: Alerts | None
) -> None:
    """The next server judges a crash that none has judged, alerts if it has targets, and leaves nothing due."""
    run_id = trained(store, ended="crashed")
    judge(store, lambda: store.run(run_id)[0].verdict, to)

    assert store.run(run_id)[0].severity == "critical"
    assert notified(store) == ({run_id} if to else set())
    assert store.runs_to_judge() == []


@pytest.mark.storage
def test_an_end_is_due_until_it_is_looked_at(store: Store) -> None:
    """A run that ends while it is judged stays due; judging its end settles it and changes no version."""
    trainer = Trainer(uuid4())
    store.ingest(trainer.batch([trainer.update(time=now())]))
    before = Judgement("healthy", None, [], store.case(trainer.run_id).version)
    assert store.keep(trainer.run_id, before).change is not None
    store.ingest(trainer.batch([], ended="finished"))
    version = store.run(trainer.run_id)[0].version

    assert store.keep(trainer.run_id, before).change is None
    assert [(each.run_id, each.due) for each in store.runs_to_judge()] == [(trainer.run_id, True)]
    assert store.keep(trainer.run_id, replace(before, version=version)).change is None
    assert store.runs_to_judge() == []
    assert store.run(trainer.run_id)[0].version == version


@pytest.mark.storage
def test_an_older_judgement_replaces_no_newer_one(store: Store) -> None:
    """Of two servers that judge a run, the one that read it before its crash does not undo the other's judgement."""
    trainer = Trainer(uuid4())
    store.ingest(trainer.batch([trainer.update(time=now())]))
    read_early = examined(store, trainer.run_id)
    store.ingest(trainer.batch([], ended="crashed"))
    read_late = examined(store, trainer.run_id)
    store.keep(trainer.run_id, read_late, TO)
    version = store.run(trainer.run_id)[0].version

    assert store.keep(trainer.run_id, read_early, TO) == Kept()
    assert store.run(trainer.run_id)[0].version == version
    assert store.run(trainer.run_id)[0].verdict == read_late.verdict
    assert store.firing() == 1


@pytest.mark.storage
def test_a_judgement_that_changed_nothing_is_newer_too(store: Store) -> None:
    """A finding that was over when another server looked later does not fire afterwards."""
    trainer = Trainer(uuid4())
    store.ingest(trainer.batch([trainer.update(time=now())]))
    healthy = examined(store, trainer.run_id)
    store.keep(trainer.run_id, healthy, TO)
    finding = wire.Finding(rule="skip_rate", severity="critical", title="bad", explanation="")
    store.ingest(trainer.batch([trainer.update(time=now())]))
    early = Judgement("bad", "critical", [finding], store.case(trainer.run_id).version)
    store.ingest(trainer.batch([trainer.update(time=now())]))
    assert store.keep(trainer.run_id, examined(store, trainer.run_id), TO).change is None

    assert store.keep(trainer.run_id, early, TO) == Kept()
    assert (store.firing(), notified(store)) == (0, set())


def test_archiving_a_run_ends_its_alerts(store: Store) -> None:
    """A worker ends the alerts of a crashed run once it is archived. Other edits leave nothing to judge."""
    run_id = trained(store, ended="crashed")
    judge(store, lambda: store.firing() == 1)
    store.edit(run_id, Edit(name="renamed", archived=False))
    assert store.runs_to_judge() == []
    store.edit(run_id, Edit(archived=True))
    judge(store, lambda: store.firing() == 0)

    assert store.open_alerts(9) == []
    assert store.runs_to_judge() == []


def test_a_run_that_cannot_be_judged_is_spared(store: Store) -> None:
    """A run that cannot be judged is retried only after an hour."""
    run_id = trained(store, ended="crashed")
    mute, _ = store.mute(Mute(run_id, None, "crashed", None), "ada")
    judge(store, lambda: store.firing() == 1)
    with engine.writing(store._engine) as connection:
        connection.execute(update(alerts).values(found="{"))
    store.lift(mute)
    with judging_by(store) as judged:
        judged.until(lambda: judged.failed.total() == 1)
        for _ in range(3):
            judged.seek(after_s=judging.SPARED_S / 4)
        assert [each.run_id for each in store.runs_to_judge()] == [run_id]
        assert (judged.failed.total(), judged._due) == (1, {})
        judged.seek(after_s=judging.SPARED_S / 4)
        judged.until(lambda: judged.failed.total() == 2)


@pytest.mark.storage
def test_a_longer_patience_is_waited_out(store: Store) -> None:
    """A silent run is judged again after `silent_s`, without another query for silent runs."""
    run_id = trained(store)
    later(store, 90)
    with judging_by(store, silent_s=100) as judged:
        judged.until(lambda: store.run(run_id)[0].verdict == "healthy")
        began_s, sought_s = judged.clock.now_s, judged._sought
        judged.until(lambda: "silent" in store.alerts(run_id).alerts)
        assert 0 < judged.clock.now_s - began_s < judging.SEEK_S
        assert judged._sought == sought_s
    assert store.run(run_id)[0].verdict.startswith("No record for ")


def test_a_trainer_whose_clock_is_ahead_hides_no_silence(store: Store) -> None:
    """Silence is measured by the server's clock, even if the trainer's clock is ahead."""
    run_id = trained(store, at=now() + HOUR)
    assert store.case(run_id).status == "running"
    later(store, 3600 + 90)
    (finding,) = diagnose(store.case(run_id), Thresholds()).findings

    assert finding.title.startswith("No record for 61 min")


@pytest.mark.storage
def test_what_a_mute_kept_back_is_sent_once_it_ends(store: Store) -> None:
    """Alerts held back by a mute are sent once it ends, is lifted or is cut short."""
    lifted, cut, ended, muted = (trained(store, ended="crashed") for _ in range(4))
    held, *_ = (
        store.mute(Mute(run_id, None, "crashed", until), "ada")[0]
        for run_id, until in (
            (lifted, None),
            (cut, None),
            (ended, now() + HOUR),
            (muted, now() + 100 * HOUR),
        )
    )
    judge(store, lambda: store.firing() == 4)
    assert (notified(store), store.runs_to_judge()) == (set(), [])
    store.lift(held)
    store.mute(Mute(cut, None, "crashed", now()), "ada")
    later(store, 99 * 3600)

    judge(store, lambda: notified(store) == {lifted, cut, ended})
    assert (store.runs_to_judge(), store.runs_to_judge(alerting=False)) == ([], [])
