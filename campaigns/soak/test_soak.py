"""The soak's short form, and that it can fail."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from sqlalchemy import Table, create_engine, delete, insert, select, update

from ampmon_server.tables import scalars, updates
from campaigns.soak.comparison import compare
from campaigns.soak.nursery import Nursery
from campaigns.soak.round import Plan, Round
from campaigns.soak.victims import Lives


pytestmark = pytest.mark.timeout(
    300
)  # on a machine where nothing else goes on, a fifth of a minute

QUICK = Lives(trainer=(0.0, 0.8), sender=(0.0, 0.8), server=(0.0, 1.0))


class Nurseries(NamedTuple):
    trainers: Nursery
    servers: Nursery


@pytest.fixture(scope="module")
def nurseries() -> Iterator[Nurseries]:
    found = Nurseries(
        Nursery("campaigns.soak.trainer:warm"), Nursery("campaigns.soak.service:warm")
    )
    with contextlib.closing(found.trainers), contextlib.closing(found.servers):
        for each in found:
            each.wait()
        yield found


def test_kills_and_lost_acknowledgements_lose_and_double_nothing(
    nurseries: Nurseries, tmp_path: Path
) -> None:
    """Trainers, senders and servers killed at random, and answers lost: each record told is stored, once, as it was."""
    one = Round(tmp_path / "round", *nurseries, Plan(kills=20, limit_s=8.0, lives=QUICK), "short")
    tally = one.run()
    count = tally.count
    assert (count.lost, count.doubled, count.problems) == (0, 0, [])
    assert count.told > 0
    assert min(tally.trainer, tally.sender, tally.server) > 0
    assert _compared_after(one, updates) == (1, 0)
    assert _compared_after(one, scalars) == (1, 0)
    # One that was in flight when its trainer was killed looks doubled too, once another stands after it.
    assert _compared_after(one, updates, double=True) in ((0, 1), (0, 2))
    with create_engine(one.database_url).begin() as connection:
        connection.execute(update(updates).values(scale=3.0))
        differing = compare(connection, one.trainings()).problems
    assert all("differ" in words for words in differing)
    assert differing


def _compared_after(one: Round, table: Table, *, double: bool = False) -> tuple[int, int]:
    """Lost and doubled, once a row of ``table`` is missing or is there twice."""
    with create_engine(one.database_url).connect() as connection:
        row = (
            connection.execute(select(table).order_by(table.c.run_id, table.c.step))
            .mappings()
            .first()
        )
        assert row is not None
        if double:
            connection.execute(insert(table).values({**row, "step": row["step"] + 1_000_000}))
        else:
            keys = [column == row[column.name] for column in table.primary_key]
            connection.execute(delete(table).where(*keys))
        count = compare(connection, one.trainings())
        connection.rollback()
    return count.lost, count.doubled


def test_a_server_that_acknowledges_too_early_is_told(nurseries: Nurseries, tmp_path: Path) -> None:
    """A server that answers before it has committed loses records when it is killed, and the soak counts them."""
    plan = Plan(
        kills=20, limit_s=4.0, rest_s=3.0, lives=QUICK, server="campaigns.soak.planted:serve"
    )
    tally = Round(tmp_path / "round", *nurseries, plan, "planted").run()
    assert tally.count.lost > 0
