"""Single parameters: pages of the table and the heatmap, and the skips of one parameter."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

import made_series as made
from ampmon import wire
from ampmon.numerics.histogram import BINS, Statistics, no_runs
from ampmon_server.charts import View
from ampmon_server.queries.drawing import draw
from ampmon_server.queries.sources import ChartRequest
from ampmon_server.store import PARAMETER_SORTS, Store
from ampmon_server.store.pages.packing import Sample
from ampmon_server.store.samples.parameters import ParameterQuery, rows_of
from ampmon_server.store.samples.samples import Shard
from batches import PARAMETERS, Trainer


SORTS = [sort for sort in PARAMETER_SORTS if sort not in {"model", "worst"}]


def _shard(*parameters: Sequence[int], rank: int = 0) -> Shard:
    """Parameters a.0, a.1, ... of 100 elements, each given as counts of zero, subnormal, off-grid and inf."""
    zeros, small, off, inf = np.array(parameters, np.int64).T
    histogram = np.zeros((len(parameters), BINS), np.int64)
    histogram[:, 20], histogram[:, 35] = small, 100 - zeros - small - inf
    statistics = Statistics(
        parameters=np.arange(len(parameters), dtype=np.int32),
        looked=np.full(len(parameters), 100),
        zeros=zeros,
        on_grid=100 - off,
        inf=inf,
        nan=np.zeros_like(zeros),
        amax=np.where(inf > 0, np.inf, 1.0 + zeros),
        sum_squares=1.0 + small.astype(np.float64),
        histogram=histogram,
        run_squares=no_runs(len(parameters)),
    )
    declared = [
        wire.Parameter(f"a.{index}", (10, 10), "float16") for index in range(len(parameters))
    ]
    return Shard(rank, Sample(3, 1, 1024.0, statistics, {}), declared, None, 0)


def _names(shards: list[Shard], **page: object) -> list[str]:
    return [row.name for row in rows_of(shards, ParameterQuery(**page)).parameters]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("model", "0123"),
        ("worst", "0132"),
        ("subnormal", "2013"),
        ("zero", "1023"),
        ("lost", "3012"),
        ("headroom", "3102"),
        ("on_grid", "2013"),
    ],
)
def test_parameters_are_sorted_the_worst_first(sort: str, order: str) -> None:
    """Parameters sort worst first by each statistic, with ties in model order, or reversed on request."""
    shards = [_shard((1, 30, 0, 0), (9, 20, 0, 0), (0, 40, 50, 0), (0, 0, 0, 5))]
    expected = [f"a.{place}" for place in order]
    assert _names(shards, sort=sort) == expected
    assert _names(shards, sort=sort, backwards=True) == expected[::-1]


counts = st.lists(st.tuples(*(st.integers(0, 25) for _ in range(4))), min_size=1, max_size=8)


@made.SOME
@given(counts, counts, st.sampled_from(SORTS), st.integers(1, 4))
def test_pages_together_are_all_parameters(
    first: list[tuple[int, ...]], second: list[tuple[int, ...]], sort: str, limit: int
) -> None:
    """Pages together hold each parameter once, as in the full table, for any sort order and limit."""
    shards = [_shard(*first), _shard(*second, rank=1)]
    every = rows_of(shards)
    pages = [
        rows_of(shards, ParameterQuery(sort=sort, first=at, limit=limit))  # type: ignore[arg-type]
        for at in range(0, every.total, limit)
    ]
    rows = [row for page in pages for row in page.parameters]
    assert sorted(rows, key=lambda row: row.name) == sorted(
        every.parameters, key=lambda row: row.name
    )
    assert every.total == every.found == max(len(first), len(second))
    on_grid = [row for row in every.parameters if row.on_grid and row.inf < row.looked]
    assert every.on_grid == len(on_grid)


def test_a_page_says_how_many_there_are(client: TestClient, store_of: Trainer) -> None:
    """A page reports total and found counts, filters by search or exact name, and obeys its limit."""
    path = f"/api/v1/runs/{store_of.run_id}/parameters"
    page = client.get(f"{path}?search=HEAD").json()
    assert [row["name"] for row in page["parameters"]] == ["head.weight"]
    assert (page["total"], page["found"], page["on_grid"], page["overflowed"]) == (2, 1, 2, 0)
    assert client.get(f"{path}?name=head").json()["parameters"] == []
    first = client.get(f"{path}?limit=1&first=1").json()["parameters"]
    assert [row["name"] for row in first] == ["head.weight"]
    assert client.get(f"{path}?sort=colour").status_code == 422


@pytest.fixture
def store_of(client: TestClient) -> Trainer:
    """A run sampled at steps 0 and 30, with skips at 20 (two culprits) and 25 (one culprit)."""
    trainer = Trainer()
    records = trainer.updates(40, sampled=(0, 30), skipped=(20, 25))
    (step,) = records[25].optimizers
    alone = msgspec.structs.replace(step, culprits=step.culprits[:1], culprit_parameters=1)
    records[25] = msgspec.structs.replace(records[25], optimizers=(alone,))
    answer = client.post(
        "/api/v1/ingest",
        content=wire.encode(trainer.batch(records)),
        headers={"Content-Type": "application/msgpack"},
    )
    assert answer.status_code == 200, answer.text
    return trainer


@pytest.mark.parametrize(
    ("parameter", "steps"), [("head.weight", [25, 20]), ("embedding.weight", [20]), ("head", [])]
)
def test_the_skips_of_a_parameter_are_found(
    client: TestClient, store_of: Trainer, parameter: str, steps: list[int]
) -> None:
    """A parameter's skips are those that name it among their culprits, by its full name."""
    path = f"/api/v1/runs/{store_of.run_id}/skips?parameter={parameter}"
    assert [skip["step"] for skip in client.get(path).json()["skips"]] == steps


@pytest.mark.storage
@pytest.mark.parametrize(("stop", "step"), [(None, 30), (30, 0), (31, 30)])
def test_a_parameter_is_drawn_at_the_newest_sample_in_view(
    store: Store, stop: int | None, step: int
) -> None:
    """The histogram shows the newest sample in view, the history all of them, the heatmap the names found."""
    trainer = Trainer()
    store.ingest(trainer.batch(trainer.updates(40, sampled=(0, 30), skipped=(20,))))
    name = PARAMETERS[1].name
    one, all_of = View(0, stop, parameter=name), View(0, stop, search="*.weight")
    figure = draw(store, trainer.run_id, "histogram", ChartRequest(one))
    assert figure["layout"]["meta"]["caption"].startswith(f"Step {step}, ")
    history = draw(store, trainer.run_id, "parameter", ChartRequest(one))
    samples = 1 + (step > 0)
    assert history["layout"]["meta"]["caption"].startswith(f"{samples} sampled step")
    found = draw(store, trainer.run_id, "parameters", ChartRequest(all_of))
    assert found["data"][0]["y"] == [each.name for each in PARAMETERS]
    (blamed,) = store.skips(trainer.run_id, parameter=name).rows
    assert blamed.step == 20
