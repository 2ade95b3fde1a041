"""The totals that ingest keeps, checked against a recount of everything sent."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID, uuid4

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ampmon import wire
from ampmon_server.store import Store
from batches import Trainer


class Start(NamedTuple):
    """A process start on a rank: where it resumes, and whether each of its updates skipped."""

    rank: int
    scaler: str
    resume_step: int
    skipped: list[bool]


STARTS = st.lists(
    st.builds(
        Start,
        st.integers(0, 2),
        st.sampled_from(["scaler", "discriminator"]),
        st.integers(0, 12),
        st.lists(st.booleans(), min_size=1, max_size=12),
    ),
    min_size=1,
    max_size=6,
)


class Sent(NamedTuple):
    trainer: Trainer
    updates: list[wire.Update]


def play(run_id: UUID, starts: Sequence[Start]) -> list[Sent]:
    """The processes of a run, in order of their starts, and the updates of each."""
    played = []
    for start in starts:
        trainer = Trainer(run_id, start.rank, start.scaler, start.resume_step)
        played.append(Sent(trainer, [trainer.update(skipped=flag) for flag in start.skipped]))
    return played


def recount(played: Sequence[Sent]) -> tuple[int, int]:
    """Updates and skips by definition: distinct steps of a scaler, each from every rank's newest attempt."""
    newest: dict[tuple[str, int, int], bool] = {}
    for trainer, updates in played:
        for update in updates:
            step = (trainer.resume_step or 0) + update.ordinal
            newest[trainer.scaler, trainer.rank, step] = update.optimizers[0].skipped
    steps = {(scaler, step) for scaler, _, step in newest}
    skipped = {(scaler, step) for (scaler, _, step), flag in newest.items() if flag}
    return len(steps), len(skipped)


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(starts=STARTS, seed=st.integers(0, 2**16), cut=st.integers(1, 5))
def test_totals_equal_a_recount(store: Store, starts: list[Start], seed: int, cut: int) -> None:
    """Totals and series equal a recount, for any overlap of attempts, order of arrival and resends."""
    run_id = uuid4()
    played = play(run_id, starts)
    batches = [
        trainer.batch(updates[first : first + cut])
        for trainer, updates in played
        for first in range(0, len(updates), cut)
    ]
    order = random.Random(seed)
    resent = order.sample(batches, len(batches) // 2)
    shuffled = order.sample([*batches, *resent], len(batches) + len(resent))
    # The server numbers attempts in order of arrival.
    for trainer, _ in played:
        store.ingest(trainer.batch())
    for batch in shuffled:
        store.ingest(batch)
    summary, _ = store.run(run_id)
    scalers = {each["scaler"]: int(each["stream"]) for each in summary.streams}
    series = [store.series(run_id, stream=int(each["stream"])).updates for each in summary.streams]
    drawn = [store.series(run_id, stream=each).updates for each in scalers.values()]

    assert (summary.updates, summary.skipped) == recount(played)
    assert summary.records == sum(len(updates) for _, updates in played)
    assert summary.lost_records == 0
    # Charts have the same counts, on every stream of a scaler.
    assert sum(int(each["n"].sum()) for each in drawn) == summary.updates
    assert sum(int(each["skipped"].sum()) for each in drawn) == summary.skipped
    assert all((each["first"][1:] > each["last"][:-1]).all() for each in series)
