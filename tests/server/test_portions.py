"""What remains to forward of a run, and the cursor: every row once, in any order of arrival."""

from __future__ import annotations

from collections import Counter
from random import Random
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as configured
from hypothesis import strategies as st
from msgspec.structs import replace

from ampmon import wire
from ampmon_server.settings import Settings
from ampmon_server.store import Store
from ampmon_server.store.forwarding import Portion
from batches import START, Trainer


KEY = "tensorboard:/somewhere"


class Reader:
    """A destination that keeps what it is given."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.points: list[tuple[str, int, int, float]] = []
        self.resumed: list[int] = []
        with store.forwarding_alone(KEY) as alone:
            assert alone
            store.begin_forwarding(KEY)

    def read(self) -> None:
        """Take every portion that is available now."""
        while behind := self.store.behind(KEY, 0, 10):
            portion = self.store.portion(KEY, behind[0].run_id)
            self.take(portion)
            self.store.keep_forwarded(portion, str(len(self.points)))

    def take(self, portion: Portion) -> None:
        assert portion.position == (str(len(self.points)) if self.points else portion.position)
        for piece in portion.pieces:
            self.resumed += [piece.points[0].step] * piece.resumed
            for step, time, values in piece.points:
                self.points += [(tag, step, time, value) for tag, value in values.items()]

    def steps(self, tag: str) -> list[int]:
        return [step for name, step, _, _ in self.points if name == tag]

    def latest(self, tag: str) -> dict[int, float]:
        return {step: value for name, step, _, value in self.points if name == tag}


def finished(trainer: Trainer) -> wire.Batch:
    return trainer.batch([trainer.event("finish")])


@pytest.mark.storage
def test_every_update_and_logged_value_is_forwarded_once(store: Store) -> None:
    """Each update's scale and skip, shares of samples and logged values are forwarded once, at their step."""
    reader = Reader(store)
    trainer = Trainer()
    for index in range(3):
        records: list[wire.Record] = [
            trainer.update(time=START + 10 * index + 5, skipped=index == 1)
        ]
        records.append(trainer.scalars({"loss": None, "lr": 0.5}, kinds={"loss": "nan"}))
        records += trainer.updates(2, sampled=[1])
        store.ingest(trainer.batch(records))
        reader.read()
    store.ingest(finished(trainer))
    reader.read()

    assert reader.steps("amp/scale") == list(range(9))
    assert reader.latest("amp/skipped_total") == dict(enumerate([0, 0, 0, 1, 1, 1, 1, 1, 1]))
    assert reader.latest("amp/skipped")[3] == 1.0
    assert reader.steps("lr") == reader.steps("loss") == [0, 3, 6]
    columns = store.updates(trainer.run_id, stream=None, start=0, stop=100, limit=100).columns
    for tag, name in (("zero_share", "zero_fraction"), ("headroom_bits", "headroom_bits")):
        stored = {
            s: v for s, v in zip(columns["step"], columns[name], strict=True) if v is not None
        }
        assert reader.latest(f"amp/{tag}") == stored
        assert list(stored) == [2, 5, 8]
    assert reader.resumed == []


def test_a_resumed_run_says_from_which_step_it_did_its_updates_again(store: Store) -> None:
    """A resume names its first step; late updates of the old attempt are forwarded only for steps not redone."""
    reader = Reader(store)
    first = Trainer(scaler="default")
    store.ingest(first.batch(first.updates(3)))
    reader.read()
    second = Trainer(first.run_id, scaler="default", resume_step=2)
    store.ingest(second.batch(second.updates(3)))
    store.ingest(first.batch(first.updates(3)))
    reader.read()
    assert reader.steps("amp/scale") == [0, 1, 2, 5, 2, 3, 4]
    assert reader.resumed == [2]


def test_values_of_the_newest_update_wait_until_no_more_can_be_logged(store: Store) -> None:
    """Logged values of the newest update wait for the next one, so a later value of that step is not lost."""
    reader = Reader(store)
    trainer = Trainer()
    store.ingest(trainer.batch([trainer.update(), trainer.scalars({"loss": 1.0})]))
    reader.read()
    assert reader.steps("amp/scale") == [0]
    assert reader.steps("loss") == []
    store.ingest(trainer.batch([trainer.scalars({"accuracy": 0.5}), trainer.update()]))
    reader.read()
    assert (reader.steps("loss"), reader.steps("accuracy")) == ([0], [0])


def test_runs_at_rest_when_forwarding_begins_stay_where_they_are(store: Store) -> None:
    """Only a run that records something after forwarding began is forwarded, and then from its first step."""
    old, new = Trainer(), Trainer()
    for trainer in (old, new):
        store.ingest(trainer.batch(trainer.updates(3)))
    reader = Reader(store)
    store.ingest(new.batch(new.updates(1)))
    assert [each.run_id for each in store.behind(KEY, 0, 10)] == [new.run_id]
    reader.read()
    assert reader.steps("amp/scale") == [0, 1, 2, 3]


def test_a_step_waits_for_every_rank(store: Store) -> None:
    """A step waits until every rank reports it or the run ends; a skip on any rank makes it skipped."""
    reader = Reader(store)
    run_id = uuid4()
    ranks = [Trainer(run_id, rank=rank, world_size=2) for rank in (0, 1)]
    store.ingest(ranks[1].batch(ranks[1].updates(1)))
    store.ingest(ranks[0].batch([*ranks[0].updates(4), ranks[0].scalars({"loss": 2.0})]))
    reader.read()
    assert reader.steps("amp/scale") == [0]
    store.ingest(
        ranks[1].batch([*ranks[1].updates(2, skipped=[1]), ranks[1].scalars({"loss": 3.0})])
    )
    reader.read()
    assert reader.latest("amp/skipped") == {0: 0.0, 1: 0.0, 2: 1.0}
    for rank in ranks:
        store.ingest(finished(rank))
    reader.read()
    assert reader.steps("amp/scale") == [0, 1, 2, 3]
    assert (reader.latest("loss"), reader.latest("rank1/loss")) == ({3: 2.0}, {2: 3.0})


@pytest.mark.engines
def test_one_server_process_forwards_at_a_time(store: Store, settings: Settings) -> None:
    """On PostgreSQL one server process at a time forwards to a destination; afterwards another may."""
    if settings.database_url is None:  # an SQLite file has one server process
        return
    other = Store.open(settings)
    with store.forwarding_alone(KEY) as first, other.forwarding_alone(KEY) as second:
        assert (first, second) == (True, False)
        with other.forwarding_alone("mlflow:elsewhere") as elsewhere:
            assert elsewhere
    with other.forwarding_alone(KEY) as second:
        assert second
    other.close()


def test_a_second_scaler_has_a_name_of_its_own(store: Store) -> None:
    """A second scaler's values are forwarded under tags with its name, as in `ampmon.metrics()`."""
    reader = Reader(store)
    trainer = Trainer()
    store.ingest(trainer.batch(trainer.updates(1)))
    trainer.scaler, first = "critic", trainer.headers
    records = [replace(trainer.update(scale=4.0, ordinal=1), seq=0)]
    store.ingest(trainer.batch(records, headers=(*first, trainer.stream)))
    reader.read()
    assert reader.latest("amp/scale") == {0: 1024.0}
    assert reader.latest("amp/critic/scale") == {1: 4.0}


ATTEMPTS = st.lists(
    st.tuples(st.integers(0, 8), st.integers(1, 5)),  # resume step, number of updates
    min_size=1,
    max_size=4,
)


@given(
    attempts=ATTEMPTS,
    lost=st.sets(st.integers(0, 30), max_size=6),
    seed=st.integers(0, 2**32),
)
@configured(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_order_records_come_in(
    store: Store, attempts: list[tuple[int, int]], lost: set[int], seed: int
) -> None:
    """In any order of arrival, the last point forwarded of each step is the stored one, and none is sent twice."""
    reader, order = Reader(store), Random(seed)
    run_id: UUID = uuid4()
    batches: list[wire.Batch] = []
    for number, (resume, count) in enumerate(attempts):
        trainer = Trainer(run_id, resume_step=resume, started=START + number)
        store.ingest(trainer.batch())
        for index in range(count):
            last = index == count - 1
            scale = 2.0 ** (4 * number + index % 4)
            time = START + 1000 * number + index
            records: list[wire.Record] = [trainer.update(scale=scale, time=time)]
            records.append(trainer.scalars({"loss": 100.0 * number + index}))
            records += [trainer.event("finish")] * last
            batches += (
                [trainer.batch([each]) for each in records]
                if not last
                else [trainer.batch(records)]
            )
    ends = [each for each in batches if len(each.records) > 1]  # never lost
    kept = [b for index, b in enumerate(batches) if index not in lost and b not in ends]
    order.shuffle(kept)
    for batch in [*kept, *ends]:
        store.ingest(batch)
        if order.random() < 0.5:
            reader.read()
    reader.read()

    assert not [each for each, times in Counter(reader.points).items() if times > 1]
    columns = store.updates(run_id, stream=None, start=0, stop=100, limit=100).columns
    scales = dict(zip(columns["step"], columns["scale"], strict=True))
    assert reader.latest("amp/scale") == scales
    values = store.scalars(run_id, "loss", stream=None, start=0, stop=100, limit=100)
    latest = reader.latest("loss")
    stored = dict(zip(values.step, values.value, strict=True))
    assert {step: latest[step] for step in stored} == stored
