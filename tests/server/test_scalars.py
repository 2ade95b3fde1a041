"""Scalars as a series: cells against rows, overlapping attempts, API calls, and the user's own steps."""

from __future__ import annotations

import itertools
import math
from uuid import UUID

import numpy as np
import pytest
from msgspec.structs import replace
from sqlalchemy import select, text
from starlette.testclient import TestClient

from ampmon import wire
from ampmon_server.model.series import UserSteps
from ampmon_server.store import BadBatch, Store
from ampmon_server.store.engine import engine
from ampmon_server.store.engine.numbers import INTEGER_MAX
from ampmon_server.store.engine.rows import insert_rows
from ampmon_server.store.pages.pyramid import LEVELS
from ampmon_server.store.pages.windows import Stretch
from ampmon_server.store.schema.tables import scalar_pages, scalar_rollups
from ampmon_server.store.streams import scalers
from ampmon_server.store.streams.scalers import sources
from ampmon_server.store.updates import logged, scalars
from ampmon_server.store.updates.scalars import SCALARS
from batches import START, Trainer
from statements import statements


EVERYTHING = (0, 2**40)


def steps(
    trainer: Trainer, losses: list[float], *, user: int | None = None, every: int = 1
) -> list[wire.Record]:
    """An update and a log record per loss; user steps begin at ``user`` and rise every ``every`` updates."""
    records: list[wire.Record] = []
    for index, loss in enumerate(losses):
        update = trainer.update()
        kind = "nan" if math.isnan(loss) else "inf" if loss > 0 else "-inf"
        finite = math.isfinite(loss)
        record = trainer.scalars(
            {"loss": loss if finite else None, "lr": 0.5}, kinds={} if finite else {"loss": kind}
        )
        own = None if user is None else user + index // every
        records += [update, replace(record, time=update.time, user_step=own)]
    return records


def cells_at(store: Store, run_id: UUID, level: int, name: str = "loss") -> np.ndarray:
    """The cells of a level of the run's first stream."""
    with engine.reading(store._engine) as connection:
        return SCALARS.read(connection, (run_id.bytes, 0, name), level, EVERYTHING)


def test_every_level_says_what_the_values_are(store: Store) -> None:
    """Every level agrees with the values of complete pages in counts, sum, ends and extremes."""
    trainer = Trainer()
    random = np.random.default_rng(3)
    losses = [*random.normal(size=700), math.nan, math.inf, -math.inf, *random.normal(size=200)]
    records = steps(trainer, losses)
    cuts = [0, 2, 40, 41, 900, len(records)]
    for first, last in itertools.pairwise(cuts):
        store.ingest(trainer.batch(records[first:last]))
    losses = losses[:768]
    finite = [each for each in losses if math.isfinite(each)]
    for level in LEVELS:
        cells = cells_at(store, trainer.run_id, level)
        assert cells["n"].sum() == len(losses)
        assert [cells[name].sum() for name in ("nan", "inf", "minus_inf")] == [1, 1, 1]
        assert cells["sum"].sum() == pytest.approx(sum(finite))
        assert (cells["value_min"].min(), cells["value_max"].max()) == (min(finite), max(finite))
        least = cells[np.argmin(cells["value_min"])]
        assert losses[least["value_min_step"]] == min(finite)
        assert (cells["value_first"][0], cells["value_last"][-1]) == (losses[0], losses[-1])


@pytest.mark.storage
def test_what_a_later_attempt_did_again_is_left_out(store: Store) -> None:
    """Values of redone steps are left out of rows and cells, even if the later attempt logged nothing there."""
    first = Trainer()
    store.ingest(first.batch(steps(first, [100.0] * 600)))
    second = Trainer(run_id=first.run_id, resume_step=300)
    store.ingest(second.batch([second.update() for _ in range(100)]))
    again = steps(second, [1.0] * 400)
    store.ingest(second.batch(again))
    values = store.scalars(first.run_id, "loss", stream=None, start=0, stop=1000, limit=1000)
    assert values.step == [*range(300), *range(400, 800)]
    assert values.value == [100.0] * 300 + [1.0] * 400
    for level in LEVELS:
        cells = cells_at(store, first.run_id, level)
        assert (cells["n"].sum(), cells["sum"].sum()) == (300 + 368, 30_368.0)


@pytest.mark.rare
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_however_many_names_there_are_a_run_may_be_resumed(store: Store) -> None:
    """A run with more names than a statement takes parameters can be resumed."""
    first = Trainer()
    store.ingest(first.batch(steps(first, [100.0] * 3)))
    _, _, _, *beside = (column.name for column in scalar_pages.c)
    columns = ", ".join(beside)
    more = text(
        f"INSERT INTO scalar_pages SELECT run_id, stream, 'name ' || place, {columns} "
        "FROM scalar_pages, generate_series(1, 66000) AS place WHERE name = 'loss'"
    )
    with engine.writing(store._engine) as connection:
        connection.execute(more)
    second = Trainer(run_id=first.run_id, resume_step=1)
    store.ingest(second.batch([second.update()]))
    values = store.scalars(first.run_id, "loss", stream=None, start=0, stop=9, limit=9)
    assert values.step == [0, 2]


def test_a_stream_has_room_for_so_many_names_and_says_when_there_is_none(store: Store) -> None:
    """A record that brings a name beyond 10,000 in a stream is refused; known names never are."""
    trainer = Trainer()
    store.ingest(trainer.batch(steps(trainer, [1.0])))
    with engine.writing(store._engine) as connection:
        page = connection.execute(select(scalar_pages).where(scalar_pages.c.name == "loss")).one()
        names = (f"name {number}" for number in range(wire.SCALAR_NAMES_MAX - 3))
        insert_rows(connection, scalar_pages, [(*page[:2], name, *page[3:]) for name in names])

    records = [trainer.scalars({"loss": 2.0}), trainer.scalars({"first": 1.0})]
    with pytest.raises(BadBatch, match="more than 10000 logged values") as refused:
        store.ingest(trainer.batch([*records, trainer.scalars({"second": 2.0})]))
    assert refused.value.field == "records[1].values"
    store.ingest(trainer.batch(records))
    with pytest.raises(BadBatch, match="more than 10000 logged values"):
        store.ingest(trainer.batch([trainer.scalars({"loss": 1.0, "second": 2.0})]))
    store.ingest(trainer.batch([trainer.scalars({"first": 3.0})]))
    listed = store.scalar_names(trainer.run_id, stream=None)
    assert len(listed) == wire.SCALAR_NAMES_MAX
    assert next(each.value for each in listed if each.name == "first") == 3.0


def test_a_window_counts_exactly_what_is_in_it(store: Store) -> None:
    """The cells of a window count exactly its values and keep its maximum, in at most 1000 cells."""
    trainer = Trainer()
    losses = np.random.default_rng(5).normal(size=3000)
    store.ingest(trainer.batch(steps(trainer, losses.tolist())))
    for start, stop in ((0, 3000), (17, 2533), (100, 103), (1600, 1601)):
        cells = store.scalar_series(trainer.run_id, "loss", Stretch(start, stop), columns=100)
        assert cells["n"].sum() == stop - start
        assert cells["value_max"].max() == losses[start:stop].max()
        assert len(cells) <= 1000


def test_cells_of_an_older_schema_are_made_from_rows(store: Store) -> None:
    """Pages rebuilt from rows equal those that ingest made."""
    trainer = Trainer()
    store.ingest(trainer.batch(steps(trainer, [float(each % 7) for each in range(500)], user=10)))
    pages = select(scalar_rollups).order_by(*scalar_rollups.primary_key)
    with engine.writing(store._engine) as connection:
        before = connection.execute(pages).all()
        connection.execute(scalar_rollups.delete())
        (of,) = sources(connection, trainer.run_id.bytes, 0)
        for name in scalars.names_of(connection, of):
            scalars.series(connection, of, name).roll_up(0, INTEGER_MAX)
        assert connection.execute(pages).all() == before


def test_names_come_with_their_newest_value(client: TestClient, send) -> None:
    """The list of names gives each one's count, extremes and newest value, even if that is NaN."""
    trainer = Trainer()
    send(trainer.batch(steps(trainer, [3.0, 1.0, 2.0, math.nan])))
    answer = client.get(f"/api/v1/runs/{trainer.run_id}/scalars").json()
    loss, lr = answer["names"]
    assert (loss["name"], loss["n"], loss["not_finite"]) == ("loss", 4, 1)
    assert (loss["least"], loss["greatest"]) == (1.0, 3.0)
    assert (loss["step"], loss["time"]) == (3, START + 150_000)
    assert (loss["value"], loss["value_kind"]) == (None, "nan")
    assert (lr["value"], lr["value_kind"], lr["scaler"]) == (0.5, None, "scaler")


def test_the_values_of_a_name_come_as_columns(client: TestClient, send) -> None:
    """The values of a name come as columns, and ``next`` says where a limited answer continues."""
    trainer = Trainer()
    send(trainer.batch(steps(trainer, [3.0, math.inf, 2.0, 1.0], user=100)))
    path = f"/api/v1/runs/{trainer.run_id}/scalars?name=loss"
    answer = client.get(f"{path}&start=1&limit=2").json()
    assert answer["step"] == [1, 2]
    assert answer["user_step"] == [101, 102]
    assert (answer["value"], answer["value_kind"]) == ([None, 2.0], ["inf", None])
    assert answer["next"] == 3
    assert client.get(f"{path}&start=3").json()["next"] is None
    assert client.get(f"{path}&start=9").json()["value"] == []


def test_values_are_read_without_their_cells(store: Store) -> None:
    """A name with values in the range is known to be logged, so its cells, which no export shows, are not read."""
    trainer = Trainer()
    store.ingest(trainer.batch([trainer.scalars({"loss": 1.0})]))
    with statements(store._engine) as executed:
        read = store.scalars(trainer.run_id, "loss", stream=0, start=0, stop=10, limit=10)
    assert read.value == [1.0]
    assert not [each for each in executed if "rollups" in each]


def test_a_name_that_was_never_logged_is_not_found(client: TestClient, send) -> None:
    """A name that was never logged gets a 404 that names it."""
    trainer = Trainer()
    send(trainer.batch(steps(trainer, [3.0])))
    answer = client.get(f"/api/v1/runs/{trainer.run_id}/scalars?name=accuracy")
    assert answer.status_code == 404
    assert "'accuracy'" in answer.json()["detail"]


def user_steps(store: Store, run_id: UUID, **bounds: int) -> UserSteps | None:
    with engine.reading(store._engine) as connection:
        return logged.user_steps(connection, scalers.find(connection, run_id, None), **bounds)


def test_the_users_own_steps_are_a_line_through_what_was_logged(store: Store) -> None:
    """The map to the user's own steps is off by at most one, and exact where zoomed in."""
    trainer = Trainer()
    store.ingest(trainer.batch(steps(trainer, [1.0] * 8000, user=500, every=4)))
    at = np.arange(0, 8000, 7)
    whole = user_steps(store, trainer.run_id, columns=100)
    assert np.abs(whole.forth(at) - (500 + at // 4)).max() <= 1
    near = user_steps(store, trainer.run_id, start=1000, stop=1020, columns=100)
    inside = np.arange(2000, 2080)
    assert (np.floor(near.forth(inside)) == 500 + inside // 4).all()
    assert near.back(1000) == 2000


def test_without_steps_of_the_users_own_there_is_no_line(store: Store) -> None:
    """Values logged without a user step give no line."""
    trainer = Trainer()
    store.ingest(trainer.batch(steps(trainer, [1.0] * 3)))
    assert user_steps(store, trainer.run_id) is None


def test_the_line_does_not_fall_where_a_run_was_resumed(store: Store) -> None:
    """The line does not fall where a resumed run restarts its own step count."""
    first = Trainer()
    store.ingest(first.batch(steps(first, [1.0] * 50, user=0)))
    second = Trainer(run_id=first.run_id, resume_step=50)
    store.ingest(second.batch(steps(second, [1.0] * 100, user=20)))
    line = user_steps(store, first.run_id)
    assert (np.diff(line.forth(np.arange(150))) >= 0).all()
    assert line.forth(np.array([149]))[0] == 119


def test_the_ends_of_a_range_of_own_steps_are_exact_however_few_columns_there_are(
    store: Store,
) -> None:
    """Either end of a range of the user's own steps is the first update of that step, alone and together."""
    trainer = Trainer()
    store.ingest(trainer.batch(steps(trainer, [1.0] * 8000, user=0, every=400)))
    for columns in (8, 31, 1000):
        for bounds in ({"start": 7}, {"stop": 13}, {"start": 7, "stop": 13}):
            found = user_steps(store, trainer.run_id, **bounds, columns=columns)
            assert found is not None
            assert [found.back(each) for each in bounds.values()] == [
                400 * each for each in bounds.values()
            ]


def test_rare_values_take_few_statements(store: Store) -> None:
    """A hundred values that are a thousand steps apart are read by some twenty statements."""
    trainer = Trainer()
    for step in range(0, 100_000, 1000):
        records = [trainer.update(ordinal=step), trainer.scalars({"loss": float(step)})]
        store.ingest(trainer.batch(records))
    (name,) = store.scalar_names(trainer.run_id)
    with statements(store._engine) as executed:
        page = store.scalars(
            trainer.run_id, "loss", stream=int(name.stream), start=0, stop=INTEGER_MAX, limit=100
        )
    assert page.step == list(range(0, 100_000, 1000))
    assert len(executed) < 30
