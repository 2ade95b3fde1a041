"""The soak at its smallest: each role is killed twice, and then records are taken away and doubled."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

from sqlalchemy import Table, create_engine, delete, insert, select, update

from ampmon_server.tables import scalars, updates
from campaigns.soak.comparison import compare
from campaigns.soak.nursery import Nursery
from campaigns.soak.round import Plan, Round
from campaigns.soak.tally import Count
from campaigns.soak.victims import Lives


KILLS = 2
LIVES = Lives(trainer=(0.0, 0.2), sender=(0.0, 0.2), server=(0.0, 0.2), early=0.0)


def test_kills_lose_and_double_nothing_and_a_lost_record_is_found(tmp_path: Path) -> None:
    """After kills and lost acknowledgements each record is stored once; one lost, doubled or changed is counted."""
    plan = Plan(kills=KILLS, limit_s=math.inf, lanes=1, exact=True, lives=LIVES)
    with contextlib.closing(
        Nursery("campaigns.soak.trainer:warm", "campaigns.soak.service:warm")
    ) as nursery:
        nursery.wait()
        one = Round(tmp_path / "round", nursery, nursery, plan, "short")
        tally = one.run()
    assert (tally.count.lost, tally.count.doubled, tally.count.problems) == (0, 0, [])
    assert tally.fewest() >= KILLS
    assert tally.count.told >= KILLS

    assert _spoiled(one, "lose").lost == 1
    assert _spoiled(one, "lose", scalars).lost == 1
    # A record that was in flight when its trainer was killed counts as doubled too, once another stands after it.
    assert _spoiled(one, "double").doubled in {1, 2}
    assert any("differ" in words for words in _spoiled(one, "change").problems)


def _spoiled(one: Round, how: str, table: Table = updates) -> Count:
    """What the comparison counts once a row of ``table`` is lost, is there twice, or has another scale."""
    with create_engine(one.database_url).connect() as connection:
        query = select(table).order_by(table.c.run_id, table.c.step)
        row = connection.execute(query).mappings().first()
        assert row is not None
        here = [column == row[column.name] for column in table.primary_key]
        if how == "lose":
            connection.execute(delete(table).where(*here))
        elif how == "double":
            connection.execute(insert(table).values({**row, "step": row["step"] + 1_000_000}))
        else:
            connection.execute(update(table).where(*here).values(scale=3.0))
        count = compare(connection, one.trainings())
        connection.rollback()
    return count
