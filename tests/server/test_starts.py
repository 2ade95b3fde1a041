"""Processes that start again, run side by side, or lose the scaler's state: each is flagged once."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import torch

import ampmon
from ampmon import wire
from ampmon_server.analysis.diagnosis.diagnose import diagnose
from ampmon_server.charts import FIGURES, Source, View
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.store import Judgement, Store
from ampmon_server.store.streams.attempts import BESIDE_US
from batches import Trainer
from draining import Into, drain


Clock = Callable[[int], None]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A function that sets the server's clock to so many microseconds from now."""
    now = time.time_ns()

    def put(ahead_us: int) -> None:
        monkeypatch.setattr("time.time_ns", lambda: now + ahead_us * 1000)

    put(0)
    return put


@pytest.mark.storage
def test_two_that_claim_one_rank_are_flagged(store: Store, clock: Clock) -> None:
    """A live process that updates 30 s after a later start of its rank is flagged as a rival, once."""
    older = Trainer()
    newer = Trainer(older.run_id)
    store.ingest(older.batch(older.updates(3), alive=True))
    store.ingest(newer.batch(newer.updates(3), alive=True))
    tail = older.batch(older.updates(3), alive=True)
    store.ingest(tail)
    early = store.run(older.run_id)[0].rivals
    clock(BESIDE_US + 1)
    store.ingest(tail)  # a resend
    resent = store.run(older.run_id)[0].rivals
    for _ in range(2):
        store.ingest(older.batch(older.updates(2), alive=True))
        store.ingest(newer.batch(newer.updates(2), alive=True))
    summary, identity = store.run(older.run_id)

    assert (early, resent, summary.rivals) == (0, 0, 1)
    assert [(each["attempt"], each["rival"]) for each in identity.attempts] == [
        (0, True),
        (1, False),
    ]
    assert summary.attempts == 2


def test_a_tail_that_comes_late_is_no_rival(store: Store, clock: Clock) -> None:
    """Late records of a dead process are no rival, even with times far in the future."""
    older = Trainer()
    store.ingest(older.batch(older.updates(3), alive=True))
    store.ingest(Trainer(older.run_id).batch(alive=True))
    clock(100 * BESIDE_US)
    ahead = [older.update(time=2 * time.time_ns() // 1000) for _ in range(3)]
    store.ingest(older.batch(ahead, alive=False))
    other = Trainer(older.run_id, rank=1)
    store.ingest(other.batch(other.updates(3), alive=True))

    assert store.run(older.run_id)[0].rivals == 0


def test_a_process_that_ended_is_no_rival(store: Store, clock: Clock) -> None:
    """A process that recorded its finish is no rival when more of its records arrive later."""
    older = Trainer()
    store.ingest(older.batch([older.event("finish")], alive=True))
    store.ingest(Trainer(older.run_id).batch(alive=True))
    clock(2 * BESIDE_US)
    store.ingest(older.batch(older.updates(3), alive=True))

    assert store.run(older.run_id)[0].rivals == 0


def dead(trainer: Trainer) -> list[wire.Record]:
    """Updates that are skipped until the scale is dead."""
    return [trainer.update(scale=2.0 ** (16 - step), skipped=True) for step in range(150)]


def judged(store: Store, run_id: UUID) -> Judgement:
    case = store.case(run_id)
    found = diagnose(case, Thresholds())
    return Judgement(found.verdict, found.severity, found.findings, case.version, case.attempts)


def stops(ack: wire.Ack) -> list[bool] | None:
    """Which of the findings in an acknowledgement tell the training to stop. None if there is no list of findings."""
    return None if ack.findings is None else [bool(each["stop"]) for each in ack.findings]


@pytest.mark.storage
def test_a_new_start_gets_no_earlier_findings(store: Store) -> None:
    """Acknowledgements to a new start have no findings until a judgement that knows of the start is stored."""
    first = [Trainer(world_size=2)]
    run_id = first[0].run_id
    first.append(Trainer(run_id, rank=1, world_size=2))
    for trainer in first:
        store.ingest(trainer.batch(dead(trainer)))
    before = judged(store, run_id)
    store.keep(run_id, before)
    assert any(stops(store.ingest(first[0].batch()).ack) or ())
    again = [Trainer(run_id, rank, resume_step=0, world_size=2) for rank in (0, 1)]
    assert stops(store.ingest(again[0].batch()).ack) is None
    assert store.keep(run_id, before).change is None
    assert stops(store.ingest(again[0].batch(again[0].updates(20))).ack) is None
    store.keep(run_id, judged(store, run_id))
    # The other rank is part of the same start, about which a judgement is stored now.
    assert stops(store.ingest(again[1].batch()).ack) == []
    assert stops(store.ingest(again[0].batch()).ack) == []


@pytest.mark.storage
def test_no_start_is_stopped_before_its_first_update(store: Store) -> None:
    """A start that continues after a dead scale learns of it, but must stop only for updates of its own."""
    first = Trainer()
    store.ingest(first.batch(dead(first)))
    again = Trainer(first.run_id)
    store.ingest(again.batch())
    store.keep(first.run_id, judged(store, first.run_id))
    stopped = stops(store.ingest(again.batch()).ack)
    assert stopped
    assert not any(stopped)
    store.ingest(again.batch([again.update(scale=2.0**-140)]))
    store.keep(first.run_id, judged(store, first.run_id))
    assert any(stops(store.ingest(again.batch()).ack) or ())


def resumed(
    store: Store, *, resume_step: int | None = None, fresh: bool = True, scale: float = 1024.0
) -> tuple[Trainer, list[dict[str, object]]]:
    """Resume a run of ten updates at scale 256; return the trainer and the details of its resume events."""
    first = Trainer()
    store.ingest(first.batch([first.update(scale=256.0) for _ in range(10)]))
    again = Trainer(first.run_id, resume_step=resume_step)
    updates = [again.update(scale=scale, fresh=fresh and not n) for n in range(3)]
    for _ in range(2):
        store.ingest(again.batch(updates))
    found = store.events(first.run_id).rows
    return again, [{**each.detail, "step": each.step} for each in found if each.kind == "resume"]


def test_a_forgotten_scaler_is_an_event(store: Store) -> None:
    """A resume whose scaler starts from another scale, with no state loaded, is recorded as forgotten, once."""
    trainer, events = resumed(store)

    assert events == [{"restored": False, "scale_before": 256.0, "scale": 1024.0, "step": 10}]
    assert store.run(trainer.run_id)[0].forgotten == 1
    series = store.series(trainer.run_id)
    assert [(each.step, each.before, each.scale) for each in series.resumes if each.lost] == [
        (10, 256.0, 1024.0)
    ]


@pytest.mark.parametrize(
    ("how", "before"),
    [
        ({"fresh": False}, 256.0),
        ({"scale": 256.0}, 256.0),
        ({"resume_step": 5, "fresh": False, "scale": 512.0}, 256.0),
        ({"resume_step": 500, "fresh": False}, 256.0),
        ({"resume_step": 0}, None),
    ],
)
def test_no_false_alarm_of_a_resume(
    store: Store, how: dict[str, object], before: float | None
) -> None:
    """A resume with loaded state, an equal scale or no step before it is recorded, but not as forgotten."""
    trainer, events = resumed(store, **how)  # type: ignore[arg-type]

    assert [each["scale_before"] for each in events] == [before]
    assert store.run(trainer.run_id)[0].forgotten == 0
    assert not any(each.lost for each in store.series(trainer.run_id).resumes)


@pytest.mark.storage
def test_each_scaler_is_compared_with_its_own_last_step(store: Store) -> None:
    """Two scalers are compared with their own last steps, and both resume after the furthest step."""
    run_id = uuid4()
    for count, fresh in ((10, False), (3, True)):
        often = Trainer(run_id, scaler="often")
        seldom = Trainer(run_id, scaler="seldom", attempt_id=often.attempt_id)
        for trainer, updates in ((often, count), (seldom, count // 3)):
            scale = 1024.0 if fresh else 256.0
            first = trainer.update(scale=scale, fresh=fresh)
            rest = [trainer.update(scale=scale) for _ in range(updates - 1)]
            store.ingest(trainer.batch([first, *rest]))
    found = [each for each in store.events(run_id).rows if each.kind == "resume"]

    assert [(each.step, each.detail["scale_before"]) for each in found] == [(10, 256.0)] * 2
    assert store.run(run_id)[0].forgotten == 2


def test_a_new_run_is_not_a_resume(store: Store) -> None:
    """A run's first start has no resume event on any rank."""
    ranks = [Trainer(rank=0, world_size=2)]
    ranks.append(Trainer(ranks[0].run_id, rank=1, world_size=2))
    for trainer in ranks:
        store.ingest(trainer.batch([trainer.update(fresh=True)]))

    assert store.events(ranks[0].run_id).rows == []


def test_real_resumes_are_distinguished(store: Store, data_directory: Path) -> None:
    """A real training that loads the scaler's state is recorded as restored, one that does not as forgotten."""
    run_id = uuid4()
    state = None
    for loads in (False, True, False):
        ampmon.init(run_id=run_id)
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = ampmon.GradScaler("cpu", init_scale=2.0**17)
        if loads and state is not None:
            scaler.load_state_dict(state)
        for _ in range(5):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(torch.ones(4, 8)).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        state = scaler.state_dict()
        ampmon.finish()
    drain(data_directory, lambda _: Into(store), modes=("online", "offline"))
    events = [each for each in store.events(run_id).rows if each.kind == "resume"]
    starts = [(each.attempt, each.step, each.detail["restored"]) for each in reversed(events)]

    assert state["scale"] < 2.0**17
    assert starts == [(1, 5, True), (2, 10, False)]
    assert store.run(run_id)[0].forgotten == 1


def test_a_forgotten_scaler_is_marked_in_the_chart(store: Store) -> None:
    """The scale chart marks the step where the scaler's state was not restored, and its hover says so."""
    trainer, _ = resumed(store)
    series = store.series(trainer.run_id)
    source = Source(series.updates, series.gradients, resumes=series.resumes)
    chart = FIGURES["scale"](source, View())
    (mark,) = (trace for trace in chart["data"] if trace["name"] == "not restored")
    elsewhere = FIGURES["scale"](source, View(0, 5))["data"]

    assert mark["text"] == [
        "step 10: the scaler's state was not restored<br>256 = 2⁸ → 1 024 = 2¹⁰".replace(
            " 024", "\u202f024"
        )
    ]
    assert mark["name"] not in {trace["name"] for trace in elsewhere}


def test_the_loss_window_is_what_was_said_last(store: Store) -> None:
    """The loss window is the longest that any rank's newest process reported; a new start clears its rank's."""
    run_id = uuid4()
    ranks = [Trainer(run_id, rank, world_size=2) for rank in (0, 1)]
    seen = []

    def say(trainer: Trainer, *records: wire.Record) -> None:
        store.ingest(trainer.batch(records))
        summary = store.run(run_id)[0]
        seen.append((summary.loss_window_ms, summary.loss_window_why))

    say(ranks[0], ranks[0].event("init"))
    say(ranks[0], ranks[0].event("spool", kept="memory", why="a slow disk", window_ms=200))
    say(ranks[1], ranks[1].event("spool", kept="memory", why="a network mount", window_ms=300))
    say(ranks[1], ranks[1].event("spool", kept="disk", why="it answers again", window_ms=0))
    again = Trainer(run_id, 0, world_size=2)
    say(again, again.event("init"))
    late = [
        again.event("spool", kept="disk"),
        again.event("spool", kept="memory", window_ms="?", why="a\0b"),
    ]
    say(again, late[1])
    say(again, late[0])  # the later one counts, in either order of arrival

    assert seen == [
        (None, None),
        (200, "a slow disk"),
        (300, "a network mount"),
        (200, "a slow disk"),
        (None, None),
        (0, "ab"),
        (0, "ab"),
    ]


def test_samples_left_out_are_counted(store: Store) -> None:
    """Samples left out are summed over events, and a resend adds nothing."""
    trainer = Trainer()
    records = [trainer.event("thinned", count=3), trainer.event("thinned", count=4)]
    for _ in range(2):
        store.ingest(trainer.batch(records))

    assert store.run(trainer.run_id)[0].thinned == 7
