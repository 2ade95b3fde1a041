"""The SQL views: every query in docs/sql.md, and what the views leave out, on both engines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect, text

from ampmon_server.store import Store
from ampmon_server.store.engine import engine
from batches import Trainer


QUERIES = re.findall(
    r"^```sql\n(.*?)^```", (Path(__file__).parents[2] / "docs" / "sql.md").read_text(), re.S | re.M
)


def ask(store: Store, query: str, **given: object) -> list[dict[str, Any]]:
    with engine.reading(store._engine) as connection:
        statement = text(query)
        wanted = {name: given[name] for name in statement.compile().params}
        return [dict(row) for row in connection.execute(statement, wanted).mappings()]


@pytest.fixture
def run(store: Store) -> str:
    """The id of a run resumed at step 20 with other skips, beside a deleted run."""
    first = Trainer(name="resumed")
    records = [*first.updates(30, skipped=[5, 25]), first.scalars({"loss": 9.0})]
    store.ingest(first.batch(records))
    second = Trainer(run_id=first.run_id, name="resumed", resume_step=20)
    again = second.updates(20, skipped=[3, 9])
    loss = second.scalars({"loss": None}, kinds={"loss": "nan"})
    store.ingest(
        second.batch([*again, loss, second.update(scale=float("inf"), event="manual_set")])
    )
    gone = Trainer(name="gone")
    store.ingest(gone.batch([*gone.updates(3, skipped=[1]), gone.scalars({"loss": 1.0})]))
    store.delete(gone.run_id)
    return str(first.run_id)


@pytest.mark.engines
def test_the_queries_of_the_documentation_answer(store: Store, run: str) -> None:
    """Each documented query runs and finds something; those with date_trunc on PostgreSQL only."""
    asked = [
        query
        for query in QUERIES
        if store._engine.dialect.name == "postgresql" or "date_trunc" not in query
    ]
    answers = [ask(store, query, run=run) for query in asked]
    assert len(QUERIES) == 6
    assert all(answers)


@pytest.mark.engines
def test_views_leave_out_what_was_done_again_and_what_is_deleted(store: Store, run: str) -> None:
    """Views have each step once, from the later attempt, and nothing of a deleted run."""
    moves = ask(store, "SELECT * FROM v_moves ORDER BY step")
    assert [(row["step"], row["attempt"]) for row in moves] == [(5, 0), (23, 1), (29, 1), (40, 1)]
    (stretch,) = ask(store, "SELECT * FROM v_stretches")
    assert (stretch["first_step"], stretch["last_step"]) == (0, 40)
    assert (stretch["updates"], stretch["skipped"], stretch["sampled_updates"]) == (41, 3, 0)
    assert [row["step"] for row in ask(store, "SELECT step FROM v_skips ORDER BY step")] == [
        5,
        23,
        29,
    ]
    (logged,) = ask(store, "SELECT * FROM v_scalars")
    assert (logged["first_step"], logged["last_step"]) == (29, 39)
    assert (logged["logged"], logged["not_finite"]) == (2, 1)
    assert (logged["value_first"], logged["value_last"], logged["value_mean"]) == (9.0, None, 9.0)
    (listed,) = ask(store, "SELECT * FROM v_runs")
    assert (listed["run_id"], listed["updates"], listed["skipped"]) == (run, 41, 3)
    assert {row["run_id"] for row in (*moves, stretch)} == {run}


@pytest.mark.engines
def test_views_speak_in_words(store: Store, run: str) -> None:
    """Views show events and kinds as words, and times as ISO dates."""
    skipped, last = ask(store, "SELECT * FROM v_moves WHERE step IN (5, 40) ORDER BY step")
    assert (skipped["event"], bool(skipped["skipped"])) == ("backoff", True)
    assert (last["event"], bool(last["skipped"])) == ("manual_set", False)
    assert (last["scale"], last["scale_kind"], last["scale_after_kind"]) == (None, "inf", "inf")
    assert (skipped["scale"], skipped["scale_kind"]) == (1024.0, None)
    time = skipped["time"]
    assert (time if isinstance(time, str) else time.isoformat()).startswith("2026-09-21T")
    (cause,) = {row["cause"] for row in ask(store, "SELECT cause FROM v_skips")}
    assert cause == "inf"


@pytest.mark.engines
def test_the_columns_of_the_views_are_documented(store: Store) -> None:
    """docs/sql.md lists the columns of each view, in order."""
    page = (Path(__file__).parents[2] / "docs" / "sql.md").read_text()
    documented = dict(re.findall(r"^\| `(v_\w+)` \| [^|]+ \| `([^`]+)` \|", page, re.M))
    with engine.reading(store._engine) as connection:
        inspector = inspect(connection)
        made = {
            view: " ".join(column["name"] for column in inspector.get_columns(view))
            for view in documented
        }
    assert made == documented
    assert len(documented) == 5


def test_a_question_about_one_run_reads_its_rows_by_key(store: Store, run: str) -> None:
    """For one run, SQLite scans only the table of runs (`r`), and searches the others by key."""
    for view in ("v_stretches", "v_moves", "v_skips", "v_scalars"):
        plan = ask(store, f"EXPLAIN QUERY PLAN SELECT * FROM {view} WHERE run_id = :run", run=run)
        scanned = {row["detail"].split()[1] for row in plan if row["detail"].startswith("SCAN")}
        assert scanned == {"r"}
