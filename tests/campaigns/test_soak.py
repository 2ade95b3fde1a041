"""The soak at its smallest: each process is killed twice, then records are removed and duplicated."""

from __future__ import annotations

import math
from pathlib import Path

from sqlalchemy import create_engine, select

from ampmon_server.store.engine.rows import insert_rows
from ampmon_server.store.pages.pages import pack
from ampmon_server.store.updates import scalars, updates
from campaigns.soak.comparison import compare
from campaigns.soak.round import Plan, Round
from campaigns.soak.tally import Count
from campaigns.soak.victims import Lives


KILLS = 2
LIVES = Lives(trainer=(0.0, 0.2), sender=(0.0, 0.2), server=(0.0, 0.2), early=0.0)


def test_kills_lose_and_double_nothing_and_a_lost_record_is_found(tmp_path: Path) -> None:
    """After kills and lost acknowledgements every record is stored once; a lost, doubled or changed one is counted."""
    plan = Plan(kills=KILLS, limit_s=math.inf, lanes=1, exact=True, lives=LIVES)
    one = Round(tmp_path / "round", plan, "short")
    tally = one.run()
    assert (tally.count.lost, tally.count.doubled, tally.count.problems) == (0, 0, [])
    assert tally.fewest() >= KILLS
    assert tally.count.reported >= KILLS

    assert _spoiled(one, "lose an update").lost == 1
    assert _spoiled(one, "lose a loss").lost == 1
    # A record in flight when its trainer was killed also counts as doubled if a later one follows.
    assert _spoiled(one, "double an update").doubled in {1, 2}
    assert any("differ" in words for words in _spoiled(one, "change an update").problems)


def _spoiled(one: Round, how: str) -> Count:
    """The comparison's count after a record was removed, duplicated or changed."""
    database = create_engine(one.database_url)
    with database.connect() as connection:
        paged = scalars.PAGES if how == "lose a loss" else updates.PAGES
        page = connection.execute(select(paged.table)).first()
        assert page is not None
        rows = paged.opened(page.bucket, page.data)
        if how == "change an update":
            rows["scale"][0] = 3.0
        key = tuple(page)[: page._fields.index("bucket")]
        if how == "double an update":
            again = rows[:1].copy()
            again["step"] += 1_000_000
            paged.put(connection, {key: again})
        rows = rows[1:] if how.startswith("lose") else rows
        stored = (*key, page.bucket, *paged.summarize(rows), pack(rows))
        insert_rows(connection, paged.table, [stored], replace=True)
        count = compare(connection, one.trainings())
        connection.rollback()
    database.dispose()
    return count
