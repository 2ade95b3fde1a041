"""The case that a run is judged by equals the posted records and stays bounded for long runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pytest

from ampmon import wire
from ampmon_server.analysis.diagnosis.diagnose import diagnose
from ampmon_server.model.aggregates.updates import EVENTS
from ampmon_server.model.case import CULPRITS, RECENT
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.store import Edit, Judgement, Keep, NotFound, Store
from ampmon_server.store.runs import cases
from batches import PARAMETERS, START, Trainer, statistics


def test_every_update_skip_and_sample_of_a_short_run_is_in_its_case(store: Store) -> None:
    """The case of a short run holds every update, skip and sample as recorded."""
    trainer = Trainer()
    updates = trainer.updates(300, skipped=(3, 4, 290), sampled=range(0, 300, 10))
    store.ingest(trainer.batch(updates))
    case = store.case(trainer.run_id)
    (scaler,) = case.scalers
    steps = [update.ordinal for update in updates]
    assert (case.updates, case.skipped, case.ranks) == (300, 3, 1)
    assert scaler.recent["first"].tolist() == scaler.first["first"].tolist() == steps
    assert scaler.recent["scale_last"].tolist() == [update.scale for update in updates]
    assert scaler.recent["after_last"].tolist() == [update.scale_after for update in updates]
    assert np.flatnonzero(scaler.recent["skipped"]).tolist() == [3, 4, 290]
    assert int(scaler.updates["n"].sum()) == 300
    assert [skip.step for skip in scaler.skips] == [290, 4, 3]
    assert scaler.skips[0].culprits[0].parameter == PARAMETERS[1].name
    assert scaler.samples.step.tolist() == list(range(0, 300, 10))
    assert scaler.parameters.names == tuple(each.name for each in PARAMETERS)
    assert scaler.parameters.numel.tolist() == [800, 80]
    assert scaler.policy.growth_interval == 2000
    assert case.config == {"lr": 0.1}


def test_the_newest_and_the_first_updates_are_given_whatever_lies_between(store: Store) -> None:
    """A longer run gives its first and newest 2048 updates one by one, and the whole in a bounded number of cells."""
    trainer = Trainer()
    for _ in range(5):
        store.ingest(trainer.batch(trainer.updates(1000)))
    (scaler,) = store.case(trainer.run_id).scalers
    assert scaler.first["first"].tolist() == list(range(RECENT))
    assert scaler.recent["first"].tolist() == list(range(5000 - RECENT, 5000))
    assert int(scaler.updates["n"].sum()) == 5000
    assert len(scaler.updates) <= 4 * cases.COLUMNS


def test_holes_make_the_newest_updates_fewer_and_never_others(store: Store) -> None:
    """With missing records, the case still gives the newest stored updates without gaps of its own."""
    trainer = Trainer()
    sent = [update for update in trainer.updates(3000) if update.ordinal % 7]
    store.ingest(trainer.batch(sent))
    (scaler,) = store.case(trainer.run_id).scalers
    held = [update.ordinal for update in sent]
    given = scaler.recent["first"].tolist()
    assert given == held[-len(given) :]
    assert len(given) > 0.9 * RECENT


@pytest.mark.storage
def test_a_sample_at_either_side_of_an_old_change_of_scale_is_given(store: Store) -> None:
    """An old growth comes with the samples just before and after it, however many newer samples exist."""
    trainer = Trainer()

    def post(count: int, every: int) -> None:
        made = trainer.updates(count, sampled=range(0, count, every))
        store.ingest(trainer.batch(made))

    post(1000, 50)
    grown = trainer.update(event="grow", scale_after=2048.0)
    store.ingest(trainer.batch([grown]))
    post(1000 + 10 * (cases.NEWEST + 10), 10)
    samples = store.case(trainer.run_id).scalers[0].samples
    older = samples.step[samples.step < 2000].tolist()
    assert older == [950, 1001]
    assert len(samples) <= cases.NEWEST + 20 + 2
    assert (np.diff(samples.step) > 0).all()


@pytest.mark.storage
@pytest.mark.parametrize("ranks", [(0, 1), (1, 0)])
def test_each_step_of_the_schedule_counts_once(store: Store, ranks: tuple[int, int]) -> None:
    """A learning rate that moved after a skip counts once over all ranks and attempts, in any order."""
    run_id = uuid4()

    def post(resume_step: int | None, rank: int, skips: tuple[int, ...]) -> None:
        trainer = Trainer(run_id, rank, resume_step=resume_step, world_size=2)
        first = resume_step or 0
        made = [
            trainer.update(skipped=step in skips, scheduled=step - 1 in skips)
            for step in range(first, first + 60)
        ]
        store.ingest(trainer.batch(made))

    for rank in ranks:
        post(None, rank, (20, 50))
    assert store.case(run_id).scheduled == 2
    for rank in ranks:
        post(40, rank, (50, 80))
    case = store.case(run_id)
    assert (case.updates, case.skipped, case.scheduled) == (100, 3, 3)


@pytest.mark.storage
def test_lints_are_given_however_many_events_came_later(store: Store) -> None:
    """A lint at the start stays among the events after a thousand later ones."""
    trainer = Trainer()
    lint = trainer.event("lint", stream=trainer.scaler, rule="fused_sgd")
    store.ingest(trainer.batch([*trainer.updates(1), lint]))
    for _ in range(cases.EVENTS // 100 + 1):
        later = [trainer.event("manual_set", stream=trainer.scaler) for _ in range(100)]
        store.ingest(trainer.batch(later))
    events = store.case(trainer.run_id).events
    assert len(events) == cases.EVENTS + 1
    assert events[-1].detail == {"rule": "fused_sgd"}
    assert all(each.kind == "manual_set" for each in events[:-1])


def test_ranks_are_given_one_by_one(store: Store) -> None:
    """Each rank's newest updates are given separately."""
    first = Trainer(world_size=2)
    second = Trainer(run_id=first.run_id, rank=1, world_size=2)
    store.ingest(first.batch(first.updates(400)))
    store.ingest(second.batch([second.update(scale=512.0) for _ in range(390)]))
    case = store.case(first.run_id)
    ranks = case.scalers[0].ranks
    assert case.ranks == 2
    assert {rank: set(cells["scale_last"].tolist()) for rank, cells in ranks.items()} == {
        0: {1024.0},
        1: {512.0},
    }
    assert int(ranks[1]["last"][-1]) == 389
    assert len(ranks[0]) == cases.RANK_UPDATES


def ranks_of(run_id: UUID, size: int, **fields: Any) -> list[Trainer]:
    return [Trainer(run_id, rank, world_size=size, **fields) for rank in range(size)]


@pytest.mark.storage
def test_ranks_are_compared_within_one_start(store: Store) -> None:
    """A rank that went back is not compared with the steps that another rank did before it went back too."""
    run_id = uuid4()
    for trainer in ranks_of(run_id, 2):
        scale = 512.0 if trainer.rank else 1024.0
        store.ingest(trainer.batch([trainer.update(scale=scale) for _ in range(200)]))
    assert diagnose(store.case(run_id), Thresholds()).findings[0].rule == "ranks_disagree"
    first, second = ranks_of(run_id, 2, resume_step=100)
    for trainer, count in ((first, 5), (second, 5), (first, 5)):
        store.ingest(trainer.batch([trainer.update(scale=256.0) for _ in range(count)]))
        assert diagnose(store.case(run_id), Thresholds()).findings == ()
    ranks = store.case(run_id).scalers[0].ranks
    assert {rank: cells["first"].tolist() for rank, cells in ranks.items()} == {
        0: list(range(100, 110)),
        1: list(range(100, 105)),
    }


@pytest.mark.storage
def test_ranks_that_a_smaller_start_no_longer_has_are_left_out(store: Store) -> None:
    """A run that resumed on fewer ranks is not judged by the steps and lints of the ranks that left."""
    run_id = uuid4()
    words = {"rule": "poisoned_state", "severity": "critical", "title": "A", "stop": True}
    for trainer in ranks_of(run_id, 4):
        store.ingest(trainer.batch(trainer.updates(300)))
        store.ingest(trainer.batch([trainer.event("lint", stream="scaler", **words)]))
    assert any(each.stop for each in diagnose(store.case(run_id), Thresholds()).findings)
    for trainer in ranks_of(run_id, 2, resume_step=100, started=START + 10**6):
        store.ingest(trainer.batch([trainer.update(scale=256.0) for _ in range(50)]))
    case = store.case(run_id)
    assert sorted(case.scalers[0].ranks) == [0, 1]
    assert diagnose(case, Thresholds()).findings == ()
    silent = replace(case, status="silent", now=(case.last_time or 0) + 3600 * 10**6)
    (finding,) = diagnose(silent, Thresholds()).findings
    assert (finding.rule, finding.evidence["rank"]) == ("silent", None)


@pytest.mark.storage
def test_what_an_attempt_did_again_counts_once(store: Store) -> None:
    """Steps that a later attempt repeats give its updates, and drop the skips it replaced."""
    first = Trainer()
    store.ingest(first.batch(first.updates(100, skipped=(50, 80))))
    second = Trainer(run_id=first.run_id, resume_step=60)
    store.ingest(second.batch([second.update(scale=256.0) for _ in range(60)]))
    case = store.case(first.run_id)
    (scaler,) = case.scalers
    assert case.attempts == 2
    assert scaler.recent["first"].tolist() == list(range(120))
    assert scaler.recent["scale_last"][60:].tolist() == [256.0] * 60
    assert [skip.step for skip in scaler.skips] == [50]


def dying(trainer: Trainer) -> list[wire.Record]:
    """Updates whose scale falls from step 300 on until it is dead, each with a logged loss."""
    made: list[wire.Record] = []
    for step in range(470):
        scale = 65536.0 / 2 ** max(step - 300, 0)
        sample = None if step % 10 else statistics(seed=step, on_grid=False).to_wire()
        made += [trainer.update(scale=scale, skipped=step >= 300, gradients=sample)]
        made += [trainer.scalars({"loss": float(step)})]
    return made


@pytest.mark.storage
@pytest.mark.parametrize("done", [0, 50, 250])
def test_what_a_newer_start_went_back_behind_is_left_out(store: Store, done: int) -> None:
    """A run that resumed at an earlier step is judged by its steps up to the last one that it has done again."""
    first = Trainer()
    store.ingest(first.batch(dying(first)))
    assert "dead" in diagnose(store.case(first.run_id), Thresholds()).verdict
    again = Trainer(run_id=first.run_id, resume_step=100)
    store.ingest(again.batch([again.update(scale=65536.0) for _ in range(done)]))
    case, last = store.case(first.run_id), 100 + done - 1
    (scaler,) = case.scalers
    assert diagnose(case, Thresholds()).verdict == "healthy"
    assert scaler.recent["first"].tolist() == list(range(last + 1))
    assert (int(scaler.updates["n"].sum()), int(scaler.updates["last"][-1])) == (last + 1, last)
    assert scaler.samples.step[-1] == 90
    assert int(scaler.parameters.cells["last"][-1]) == 90
    assert int(scaler.logged["loss"]["last"][-1]) == 99
    assert scaler.skips == ()
    assert store.gradient_samples(first.run_id).step[-1] == 90


@pytest.mark.storage
@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_go_back_one_after_another_are_judged_by_the_first(
    store: Store, rank: int
) -> None:
    """The rank that delivers its new steps first replaces the old steps and skips of the others."""
    run_id = uuid4()
    for each in (0, 1):
        trainer = Trainer(run_id, each, world_size=2)
        store.ingest(trainer.batch(dying(trainer)))
    again = Trainer(run_id, rank, world_size=2, resume_step=280)
    store.ingest(again.batch([again.update(scale=65536.0) for _ in range(50)]))
    case = store.case(run_id)
    (scaler,) = case.scalers
    assert diagnose(case, Thresholds()).verdict == "healthy"
    assert scaler.recent["first"].tolist() == list(range(330))
    assert int(scaler.recent["skipped"].sum()) == 0
    assert set(scaler.recent["scale_last"].tolist()) == {65536.0}
    assert scaler.skips == ()


@pytest.mark.storage
def test_a_rank_that_left_skips_no_step_that_others_did_again(store: Store) -> None:
    """Skips of a rank that a smaller start no longer has are not among the newest updates that were done again."""
    first = Trainer(world_size=2)
    gone = Trainer(run_id=first.run_id, rank=1, world_size=2)
    store.ingest(first.batch(first.updates(300)))
    store.ingest(gone.batch(gone.updates(300, skipped=(50, 150))))
    alone = Trainer(run_id=first.run_id, resume_step=100)
    store.ingest(alone.batch(alone.updates(300)))
    (scaler,) = store.case(first.run_id).scalers
    assert np.flatnonzero(scaler.recent["skipped"]).tolist() == [50]
    assert [skip.step for skip in scaler.skips] == [50]


@pytest.mark.storage
def test_a_scaler_that_a_newer_start_has_not_used_yet_ends_where_it_began(store: Store) -> None:
    """Of a scaler without updates in the newest start, only the steps before that start are given."""
    first = Trainer(scaler="generator")
    other = Trainer(run_id=first.run_id, attempt_id=first.attempt_id, scaler="critic")
    store.ingest(first.batch(first.updates(300)))
    store.ingest(other.batch(other.updates(300)))
    again = Trainer(run_id=first.run_id, scaler="generator", resume_step=100)
    store.ingest(again.batch(again.updates(20)))
    assert [
        (each.name, int(each.recent["last"][-1])) for each in store.case(first.run_id).scalers
    ] == [("generator", 119), ("critic", 99)]


@pytest.mark.storage
def test_a_start_that_goes_on_undoes_nothing(store: Store) -> None:
    """A start that continues at the last step leaves all updates in the case, also before its own first one."""
    first = Trainer()
    store.ingest(first.batch(first.updates(100)))
    again = Trainer(run_id=first.run_id)
    for last in (99, 109):
        store.ingest(again.batch(again.updates(last - 99)))
        (scaler,) = store.case(first.run_id).scalers
        assert scaler.recent["first"].tolist() == list(range(last + 1))


@pytest.mark.storage
def test_a_run_that_begins_again_is_judged_anew(store: Store) -> None:
    """A start at step 0 undoes all earlier updates."""
    first = Trainer()
    store.ingest(first.batch(dying(first)))
    again = Trainer(run_id=first.run_id, resume_step=0)
    store.ingest(again.batch())
    (scaler,) = store.case(first.run_id).scalers
    assert len(scaler.recent) == len(scaler.updates) == len(scaler.samples) == 0
    store.ingest(again.batch([again.update(scale=65536.0)]))
    (scaler,) = store.case(first.run_id).scalers
    assert scaler.recent["scale_last"].tolist() == [65536.0]


def test_two_scalers_are_two(store: Store) -> None:
    """Each scaler of a run is given separately, in order of first report."""
    first = Trainer(scaler="generator")
    other = Trainer(run_id=first.run_id, attempt_id=first.attempt_id, scaler="critic")
    store.ingest(first.batch(first.updates(5)))
    store.ingest(other.batch(other.updates(7, skipped=(1,))))
    case = store.case(first.run_id)
    assert [(each.name, len(each.recent), len(each.skips)) for each in case.scalers] == [
        ("generator", 5, 0),
        ("critic", 7, 1),
    ]


def test_of_many_culprits_the_first_are_given(store: Store) -> None:
    """A skip with 200 culprits gives the first few and their total."""
    trainer = Trainer()
    (update,) = trainer.updates(1, skipped=(0,))
    many = update.optimizers[0].culprits * 100
    optimizer = type(update.optimizers[0])(
        optimizer="SGD", path="plain", skipped=True, culprits=many, culprit_parameters=len(many)
    )
    skipped = trainer.update(skipped=True, optimizers=(optimizer,))
    store.ingest(trainer.batch([update, skipped]))
    newest = store.case(trainer.run_id).scalers[0].skips[0]
    assert len(newest.culprits) == CULPRITS
    assert newest.culprit_parameters == 200


def test_logged_losses_come_before_other_names(store: Store) -> None:
    """Of many logged names, the loss is among the few given."""
    trainer = Trainer()
    (update,) = trainer.updates(1)
    values = {f"a{number:02}": 1.0 for number in range(20)} | {"train/loss": 2.5}
    store.ingest(trainer.batch([update, trainer.scalars(values)]))
    logged = store.case(trainer.run_id).scalers[0].logged
    assert len(logged) == cases.NAMES
    assert logged["train/loss"]["value_last"].tolist() == [2.5]


@pytest.mark.storage
def test_a_run_that_has_hardly_begun_has_a_case(store: Store) -> None:
    """A run with only a header, or with a scaler but no updates, has a case. An unknown run raises NotFound."""
    trainer = Trainer()
    store.ingest(trainer.batch([trainer.event("init")], headers=(trainer.attempt,)))
    assert store.case(trainer.run_id).scalers == ()
    store.ingest(trainer.batch())
    (scaler,) = store.case(trainer.run_id).scalers
    assert len(scaler.recent) == len(scaler.samples) == len(scaler.updates) == 0
    with pytest.raises(NotFound):
        store.case(Trainer().run_id)


def test_events_are_coded_as_cells_have_them(store: Store) -> None:
    """Cells of the whole run count scale changes by kind, with their last step."""
    trainer = Trainer()
    made = trainer.updates(30, skipped=(20,))
    store.ingest(trainer.batch(made))
    cells = store.case(trainer.run_id).scalers[0].updates
    backoff = EVENTS.index("backoff") - 1
    assert int(cells["moves"][:, backoff].sum()) == 1
    assert int(cells["move_last"][:, backoff].max()) == 20


def test_shards_are_added_up(store: Store) -> None:
    """Samples of sharded gradients are summed over the ranks."""
    first = Trainer(world_size=2, layout="sharded")
    second = Trainer(run_id=first.run_id, rank=1, world_size=2, layout="sharded")
    for trainer in (first, second):
        store.ingest(trainer.batch(trainer.updates(50, sampled=(0, 25, 49))))
    (scaler,) = store.case(first.run_id).scalers
    assert scaler.policy.layout == "sharded"
    assert scaler.samples.step.tolist() == [0, 25, 49]
    assert scaler.samples.on_grid.looked.tolist() == [2 * int(statistics().looked.sum())] * 3


@pytest.mark.storage
def test_a_pruned_run_has_a_case(store: Store) -> None:
    """A pruned run's case counts every update, and has the single updates that are still held."""
    trainer = Trainer()
    store.ingest(trainer.batch(trainer.updates(3000, skipped=(5,), sampled=range(0, 3000, 100))))
    store.ingest(trainer.batch([trainer.event("finish")]))
    for due in store.due(Keep(0, 0)):
        list(store.prune(due))
    (scaler,) = store.case(trainer.run_id).scalers
    assert int(scaler.updates["n"].sum()) == 3000
    assert int(scaler.first["skipped"].sum()) == 1
    assert scaler.recent["first"].tolist() == list(range(3000 >> 8 << 8, 3000))
    assert int(store.series(trainer.run_id).gradients["n"].sum()) == 30


def sawtooth(trainer: Trainer, count: int, interval: int) -> list[wire.Update]:
    """Updates whose scale grows after each ``interval`` updates, and is then too large."""
    made = []
    for step in range(count):
        at = step % (interval + 1)
        event = {interval - 1: "grow", interval: "backoff"}.get(at, "steady")
        scale = 2048.0 if at == interval else 1024.0
        after = 2048.0 if event == "grow" else 1024.0
        fields = {"event": event, "scale": scale, "scale_after": after, "growth_tracker": at}
        made.append(trainer.update(skipped=at == interval, **fields))
    return made


def prune(store: Store) -> None:
    for due in store.due(Keep(rows_days=0)):
        list(store.prune(due))


@pytest.mark.storage
@pytest.mark.parametrize("ended", [True, False])
def test_pruning_gives_a_run_no_other_finding(store: Store, ended: bool) -> None:
    """An ended run keeps its findings when its rows are pruned. No other run gets a finding from rolled-up updates."""
    trainer = Trainer()
    store.ingest(trainer.batch(sawtooth(trainer, 6000, 50)))
    if ended:
        store.ingest(trainer.batch([trainer.event("finish")]))

    def judged() -> tuple[wire.Finding, ...]:
        return diagnose(store.case(trainer.run_id), Thresholds()).findings

    before = judged()
    assert [each.rule for each in before] == ["skip_rate"]
    case = store.case(trainer.run_id)
    store.keep(trainer.run_id, Judgement("", None, before, case.version, case.attempts))
    prune(store)
    assert judged() == (before if ended else ())
    for archived in (True, False):
        store.edit(trainer.run_id, Edit(archived=archived))
        assert judged() == (before if ended else ())
        store.keep(
            trainer.run_id, Judgement("", None, judged(), store.case(trainer.run_id).version)
        )
