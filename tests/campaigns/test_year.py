"""The year campaign at its smallest: two runs through real ingest, and totals that do not match."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ampmon_server.model.aggregates.updates import ROWS
from ampmon_server.store.pages.pages import pack
from batches import PARAMETERS, statistics
from benchmarks.store.samples import Real
from campaigns.year import campaign, senders
from campaigns.year.account import account
from campaigns.year.campaign import Campaign
from campaigns.year.population import RUNS, population


SCALE, SEED = 0.0001, 3


def test_a_year_adds_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each update of a year is stored or was thinned, and the totals match."""
    monkeypatch.setattr(campaign, "MONTH_ENDS", (365,))
    monkeypatch.setattr(campaign, "LOOKED_AT", ())
    monkeypatch.setattr(senders, "PROCESSES", 1)
    monkeypatch.setenv("BENCHMARK_CLOCK", "")  # restored at the end
    year = Campaign(tmp_path, SCALE, SEED, look_s=0.0)

    found = year.run(Real(PARAMETERS, [statistics()]), lambda: None)

    assert found.problems == []
    assert found.held + found.thinned == found.sent == year.total > 0
    assert min(found.held, found.thinned) > 0


@pytest.mark.parametrize(
    ("held", "summary", "problem"),
    [
        (20, {}, None),
        (19, {}, "19 held"),
        (20, {"updates": 61}, "updates is 61"),
        (20, {"run_id": "another"}, "is not in the list"),
    ],
)
def test_what_does_not_add_up_is_reported(
    tmp_path: Path, held: int, summary: dict[str, Any], problem: str | None
) -> None:
    """A missing row, a wrong total and an unlisted run are problems."""
    (run,) = population(1 / RUNS, SEED)
    run = replace(run, updates=60, ranks=1, fate="finished")
    file = tmp_path / "ampmon.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE update_pages (run_id, data)")
        connection.execute("CREATE TABLE streams (run_id, rows_from)")
        page = (run.run_id.bytes, pack(np.zeros(held, ROWS)))
        connection.execute("INSERT INTO update_pages VALUES (?, ?)", page)
        connection.execute("INSERT INTO streams VALUES (?, 40)", page[:1])
        connection.commit()
    answer = {"run_id": str(run.run_id), "updates": 60, "skipped": 2, "last_step": 59, "ranks": 1}
    answer |= {"attempts": 1, "lost_records": 0, "project": run.project, "status": "finished"}
    answer |= {"verdict": "healthy"}

    found = account([{**answer, **summary}], file, [run], {0: 2})

    assert [problem in each for each in found.problems[:1]] == ([] if problem is None else [True])
    assert found.judged == (summary.get("run_id") is None)
