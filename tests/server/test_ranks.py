"""Ranks compared side by side, and one rank alone."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

import made_series as made
from ampmon_server.analysis.diagnosis.diagnose import diagnose
from ampmon_server.charts import View
from ampmon_server.charts.ranks import ranks
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.queries.drawing import draw
from ampmon_server.queries.sources import ChartRequest
from ampmon_server.store import Keep, NotFound, Store
from ampmon_server.store.updates.ranks import RANKS
from batches import Trainer


def _run(store: Store, *ranks: list[dict]) -> Trainer:  # type: ignore[type-arg]
    """A run whose ranks made these updates; those that are ``LOST`` are never sent."""
    run_id, trainers = uuid4(), []
    for rank, updates in enumerate(ranks):
        trainer = Trainer(run_id=run_id, rank=rank, world_size=len(ranks))
        made_ = [(trainer.update(**each), each) for each in updates]
        store.ingest(trainer.batch([record for record, each in made_ if each != {"cost": 0.0}]))
        trainers.append(trainer)
    return trainers[0]


LOST = {"cost": 0.0}
STEADY: dict[str, float] = {}
SKIP = {"skipped": True}
HIGH = {"scale": 2048.0}


def test_ranks_that_agree_have_a_strip_each(store: Store) -> None:
    """Ranks that agree have a strip each and no disagreement, even where both skip."""
    run = _run(store, [STEADY, SKIP, STEADY], [STEADY, SKIP, STEADY])
    figure = draw(store, run.run_id, "ranks", ChartRequest())
    (skips,) = made.traces(figure, name="skip")
    assert (made.read(skips["x"]).tolist(), made.read(skips["y"]).tolist()) == ([1, 1], [0, -1])
    assert made.traces(figure, name="disagreement") == []
    assert figure["layout"]["meta"]["caption"] == (
        "2 ranks, compared at 3 of 3 steps. They agree on the scale and on every skip."
    )
    assert figure["layout"]["yaxis"]["ticktext"] == ["rank 0", "rank 1"]


def test_a_disagreement_is_marked_at_the_rank_and_reported(store: Store) -> None:
    """A lone skip and a different scale are marked at their rank, with text that compares it to rank 0."""
    run = _run(store, [STEADY] * 4, [STEADY] * 4, [STEADY, SKIP, STEADY, HIGH])
    figure = draw(store, run.run_id, "ranks", ChartRequest())
    (marks,) = made.traces(figure, name="disagreement")
    assert (made.read(marks["x"]).tolist(), made.read(marks["y"]).tolist()) == ([1, 3], [-2, -2])
    assert marks["text"] == [
        "step 1: rank 2 skipped, rank 0 did not",
        "step 3: rank 2 at 2\u202f048 = 2¹¹, rank 0 at 1\u202f024 = 2¹⁰",
    ]
    caption = figure["layout"]["meta"]["caption"]
    assert "They disagree at 2 of them, first at step 1." in caption


def test_where_a_rank_has_no_record_its_strip_is_broken(store: Store) -> None:
    """A rank without a record of some steps has a broken strip, and the caption counts those steps."""
    run = _run(store, [STEADY] * 5, [STEADY, STEADY, LOST, LOST, STEADY])
    figure = draw(store, run.run_id, "ranks", ChartRequest())
    (strips,) = made.traces(figure, name="has a record")
    x, y = made.read(strips["x"]), made.read(strips["y"])
    assert x[y == -1].tolist() == [0, 1, 4, 4]
    assert x[y == 0].tolist() == [0, 4]
    assert "Rank 1 has no record of 2 of them." in figure["layout"]["meta"]["caption"]


def test_of_many_updates_the_ends_and_the_skips_of_columns_are_compared(store: Store) -> None:
    """A lone skip is found among more updates than the chart has columns."""
    n = 700
    odd = [SKIP if step == 333 else STEADY for step in range(n)]
    run = _run(store, [STEADY] * n, odd)
    figure = draw(store, run.run_id, "ranks", ChartRequest(View(width=100)))
    (marks,) = made.traces(figure, name="disagreement")
    assert made.read(marks["x"]).tolist() == [333]
    assert "zoom in for more" in figure["layout"]["meta"]["caption"]


def test_of_many_ranks_the_lowest_are_compared_and_all_counted(store: Store) -> None:
    """Of 65 ranks that agree the lowest 64 are compared, and the caption counts all."""
    run = _run(store, *[[STEADY]] * (RANKS + 1))
    figure = draw(store, run.run_id, "ranks", ChartRequest())
    assert figure["layout"]["meta"]["caption"].startswith(
        "64 of 65 ranks, those that last differed from the lowest rank first, compared at 1 of 1 step. They agree"
    )
    assert figure["layout"]["yaxis"]["ticktext"][-1] == "rank 60"


@pytest.mark.parametrize("odd", [SKIP, HIGH])
@pytest.mark.parametrize("n", [3, 300])
def test_of_many_ranks_the_odd_one_is_found(
    store: Store, odd: dict[str, float | bool], n: int
) -> None:
    """Where only the last of 67 ranks has another skip or scale, in an older page too, a finding names it."""
    last = [odd if step == n - n // 3 - 1 else STEADY for step in range(n)]
    late = [STEADY] * (n - 1)
    run = _run(store, *[[STEADY] * n] * RANKS, late, late, last)
    (finding,) = diagnose(store.case(run.run_id), Thresholds()).findings[:1]
    assert finding.title.startswith(f"Ranks 0 and {RANKS + 2} disagree on scale or skip at 1 step")
    figure = draw(store, run.run_id, "ranks", ChartRequest(View(width=n)))
    assert figure["layout"]["yaxis"]["range"] == [0.7 - RANKS, 0.7]
    axis = figure["layout"]["yaxis"]
    assert (axis["tickvals"][-1], axis["ticktext"][-1]) == (1 - RANKS, f"rank {RANKS + 2}")
    assert "They disagree at 1 of them" in figure["layout"]["meta"]["caption"]


def test_where_rows_are_pruned_ranks_are_not_said_to_agree(store: Store) -> None:
    """Ranks are compared only where rows remain; a window without any says that nothing can be compared."""
    odd = [SKIP if step == 500 else STEADY for step in range(1000)]
    run = _run(store, [STEADY] * 1000, odd)
    (due,) = store.due(Keep(rows_days=0))
    assert list(store.prune(due))
    gone = "Before step 768, steps are stored in groups of 16: their rows are pruned."
    caption = draw(store, run.run_id, "ranks", ChartRequest())["layout"]["meta"]["caption"]
    assert caption == (
        "2 ranks, compared at 232 of 1\u202f000 steps. "
        f"They agree on the scale and on every skip. {gone}"
    )
    meta = draw(store, run.run_id, "ranks", ChartRequest(View(400, 600)))["layout"]["meta"]
    assert meta["empty"] == f"No step here can be compared between ranks. {gone}"


def test_one_rank_can_be_looked_at_alone(store: Store) -> None:
    """A chart of one rank covers its rows alone, and an unknown rank is not found."""
    run = _run(store, [STEADY] * 3, [STEADY, SKIP, STEADY])
    captions = [
        draw(store, run.run_id, "skips", ChartRequest(rank=rank))["layout"]["meta"]["caption"]
        for rank in (None, 0, 1)
    ]
    assert ["1 of 3 skipped" in caption for caption in captions] == [True, False, True]
    assert captions[1].startswith("No step skipped")
    with pytest.raises(NotFound, match="no rank 7"):
        draw(store, run.run_id, "scale", ChartRequest(rank=7))


def test_a_run_of_one_rank_says_so() -> None:
    """The ranks chart of a one-rank run says that there is one rank."""
    meta = ranks(replace(made.source(made.updates([1.0])), ranks=()), View())["layout"]["meta"]
    assert meta["empty"] == "This run has only one rank."
