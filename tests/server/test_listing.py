"""The list of runs: search, filters, sorting, counts and pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import text
from starlette.testclient import TestClient

from ampmon_server.settings import Settings
from ampmon_server.store import Edit, Judgement, NotFound, Store, Wanted
from batches import START, Trainer
from postgres import Postgres


pytestmark = pytest.mark.storage


def trained(
    store: Store, name: str, updates: int = 1, skipped: tuple[int, ...] = (), **header: Any
) -> Trainer:
    """A run with some updates. ``skipped`` are the places of the skipped ones."""
    trainer = Trainer(name=name)
    attempt = msgspec.structs.replace(trainer.attempt, **{"started": START, **header})
    records = trainer.updates(updates, skipped=skipped)
    store.ingest(trainer.batch(records, headers=(attempt, trainer.stream)))
    return trainer


@pytest.fixture
def runs(store: Store) -> dict[str, Trainer]:
    """Four different runs, oldest first."""
    made = {
        "Alpha": trained(store, "Alpha", 4, (0, 1), project="letters", owner="ada"),
        "beta": trained(store, "beta", 9, started=START + 1, project="letters", owner="grace"),
        "50 % off_scale": trained(store, "50 % off_scale", 2, (0,), started=START + 2, owner="ada"),
        "Äther": trained(store, "Äther", 0, started=START + 3, project="greek"),
    }
    store.edit(made["Alpha"].run_id, Edit(tags=("baseline", "lr")))
    store.edit(made["beta"].run_id, Edit(tags=("Baseline", 'a "b"')))
    return made


def names(store: Store, **wanted: Any) -> list[str]:
    return [run.name for run in store.runs(Wanted(**wanted)).rows]


@pytest.mark.engines
def test_every_word_of_a_search_is_found_somewhere(store: Store, runs: dict[str, Trainer]) -> None:
    """Search finds every word literally, in any case of A to Z, in names, projects, owners and tags."""
    assert names(store, search="ALPH") == ["Alpha"]
    assert names(store, search="letters  ada") == ["Alpha"]
    assert names(store, search="baseline") == ["beta", "Alpha"]
    assert names(store, search="% off_") == ["50 % off_scale"]
    assert names(store, search="a_p") == []
    assert names(store, search='"b"') == ["beta"]
    assert names(store, search="Äth") == ["Äther"]


def test_filters_hold_together(store: Store, runs: dict[str, Trainer]) -> None:
    """Project, tag and status filters combine. A tag must match whole and in case."""
    assert names(store, project="letters") == ["beta", "Alpha"]
    assert names(store, tag="baseline") == ["Alpha"]
    assert names(store, tag='a "b"') == ["beta"]
    assert names(store, tag="base") == []
    assert names(store, project="letters", tag="lr", status="running") == ["Alpha"]
    assert names(store, project="letters", status="finished") == []
    assert store.runs(Wanted(project="letters"), limit=1).total == 2


@pytest.mark.engines
def test_what_stands_between_tags_is_not_in_them(store: Store, runs: dict[str, Trainer]) -> None:
    """Search finds brackets, commas, quotes and backslashes only where a tag contains them."""
    for name, tags in {
        "Alpha": ("plain", "x", "Plain"),
        "beta": ('a"x', 'z",', "\\"),
        "Äther": ("[1, 2]",),
    }.items():
        store.edit(runs[name].run_id, Edit(tags=tags))

    assert [names(store, search=each) for each in ("[", "]", "[]", '","')] == [
        ["Äther"],
        ["Äther"],
        [],
        [],
    ]
    assert names(store, search=",") == ["Äther", "beta"]
    assert names(store, search='"') == names(store, search="\\") == ["beta"]
    assert names(store, search="PLAIN") == ["Alpha"]
    assert names(store, tag="x") == names(store, tag="Plain") == ["Alpha"]
    assert names(store, tag='a"x') == ["beta"]
    assert names(store, tag=",") == names(store, tag="PLAIN") == []


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("started", ["Äther", "50 % off_scale", "beta", "Alpha"]),
        ("updates", ["beta", "Alpha", "50 % off_scale", "Äther"]),
        # Equal runs are ordered newest first. A run without updates has no share and comes last.
        ("skipped", ["50 % off_scale", "Alpha", "beta", "Äther"]),
        ("severity", ["Alpha", "50 % off_scale", "Äther", "beta"]),
        ("owner", ["beta", "Äther", "50 % off_scale", "Alpha"]),
    ],
)
def test_runs_come_in_the_order_asked_for(
    store: Store, runs: dict[str, Trainer], sort: Any, expected: list[str]
) -> None:
    """Every column sorts, greatest first by default. Runs without a value are last in both orders."""
    store.keep(runs["Alpha"].run_id, Judgement("words", "critical", ()))
    store.keep(runs["50 % off_scale"].run_id, Judgement("words", "notice", ()))
    store.keep(runs["Äther"].run_id, Judgement("healthy", None, ()))

    assert names(store, sort=sort) == expected
    ascending = names(store, sort=sort, ascending=True)
    last = {"skipped": "Äther", "severity": "beta"}.get(sort)
    assert ascending[-1] == (last or ascending[-1])
    assert sorted(ascending) == sorted(expected)
    assert ascending != expected


@pytest.mark.engines
def test_names_sort_without_regard_to_case(store: Store, runs: dict[str, Trainer]) -> None:
    """Names sort without regard to case."""
    found = names(store, sort="name", ascending=True, project="letters")
    assert found == ["Alpha", "beta"]


@pytest.fixture
def abroad(postgres: Postgres, tmp_path: Path) -> Iterator[Store]:
    """A store in a PostgreSQL database with a Unicode locale, as most have."""
    url = postgres.new_database(options="LOCALE 'C.UTF-8'")
    opened = Store.open(Settings(data_directory=tmp_path / "abroad", database_url=url))
    yield opened
    opened.close()
    postgres.drop(url)


@pytest.mark.engines
def test_the_language_of_a_database_changes_no_list(store: Store, abroad: Store) -> None:
    """With a Unicode locale, runs are sorted and found as elsewhere: only A to Z ignore case."""
    with abroad._engine.connect() as connection:
        assert connection.scalar(text("SELECT lower('Ä')")) == "ä"
    for each in (store, abroad):
        for name in ("äa", "Äb", "b", "A"):
            trained(each, name, owner=name)
        assert names(each, sort="name", ascending=True) == ["A", "b", "Äb", "äa"]
        assert names(each, sort="owner") == ["äa", "Äb", "b", "A"]
        assert names(each, search="ÄB") == ["Äb"]
        assert names(each, search="äb") == []


def test_a_page_begins_anywhere(client: TestClient) -> None:
    """Pages by offset hold every run once in order, with the total. An offset with a cursor is rejected."""
    store = client.app.state.service.store  # type: ignore[attr-defined]
    for number in range(7):
        trained(store, f"run {number}", number, started=START + number)
    ask = "/api/v1/runs?sort=updates&order=ascending&limit=3&offset="
    pages = [client.get(f"{ask}{offset}").json() for offset in (0, 3, 6, 9)]

    assert [run["updates"] for page in pages for run in page["runs"]] == list(range(7))
    assert [(page["total"], page["next"]) for page in pages] == [(7, None)] * 4
    first = client.get("/api/v1/runs?limit=3").json()
    answer = client.get(f"/api/v1/runs?offset=1&cursor={first['next']}")
    assert (answer.status_code, answer.json()["field"]) == (422, "cursor")


def test_what_can_be_filtered_by_is_counted(store: Store, runs: dict[str, Trainer]) -> None:
    """Projects and tags are counted without archived and deleted runs. Archived runs are counted apart."""
    store.edit(runs["beta"].run_id, Edit(archived=True))
    store.delete(runs["Äther"].run_id)
    groups = store.groups()

    assert groups.projects == {"default": 1, "letters": 1}
    assert groups.tags == {"baseline": 1, "lr": 1}
    assert store.groups(archived=True).projects == {"letters": 1}
    assert names(store, archived=True) == ["beta"]
    with pytest.raises(NotFound):
        store.run(runs["Äther"].run_id)


def test_scales_of_many_runs_come_in_one_answer(client: TestClient) -> None:
    """Scales give a path and words per existing run, null before its first update, from a bounded number of cells."""
    store = client.app.state.service.store  # type: ignore[attr-defined]
    short, long = trained(store, "short", 3), trained(store, "long", 600, (300,))
    new, gone = trained(store, "new", 0), Trainer()
    asked = [str(each.run_id) for each in (short, long, new, gone)]
    answer = client.get(f"/api/v1/runs/scales?runs={','.join(asked)}")

    assert set(answer.json()) == set(asked[:3])
    assert answer.json()[asked[0]] == {"path": "M0 12H96", "skips": "", "words": "2¹⁰ all along"}
    assert answer.json()[asked[1]]["skips"].startswith("M48")
    assert answer.json()[asked[2]] is None
    assert 16 <= len(store.scales([long.run_id])[long.run_id]) <= 256
    tag = {"If-None-Match": answer.headers["etag"]}
    assert client.get(f"/api/v1/runs/scales?runs={','.join(asked)}", headers=tag).status_code == 304


def test_losses_of_many_runs_come_in_one_answer(client: TestClient) -> None:
    """Losses give the last and least value with its name, a non-finite one as its kind, and null without a loss."""
    store = client.app.state.service.store  # type: ignore[attr-defined]
    none, lost = trained(store, "none", 3), Trainer(name="lost")
    records = [lost.update(), lost.scalars({"acc": 1.0, "val_loss": 0.5}), lost.update()]
    records += [lost.scalars({"val_loss": None}, kinds={"val_loss": "nan"})]
    store.ingest(lost.batch(records))
    asked = [str(each.run_id) for each in (none, lost, Trainer())]
    answer = client.get(f"/api/v1/runs/losses?runs={','.join(asked)}").json()
    words = "NaN (min\u00a00.5)"
    assert answer[asked[1]] == {
        "name": "val_loss",
        "value": None,
        "kind": "nan",
        "least": 0.5,
        "words": words,
    }
    assert (answer[asked[0]], answer[asked[2]]) == (None, None)


@pytest.mark.parametrize("runs", ["a,b", ",".join(str(UUID(int=each)) for each in range(101))])
def test_scales_of_too_many_or_of_none_are_refused(client: TestClient, runs: str) -> None:
    """Invalid ids, and more than a hundred, get 422."""
    answer = client.get(f"/api/v1/runs/scales?runs={runs}")
    assert (answer.status_code, answer.json()["field"]) == (422, "runs")
