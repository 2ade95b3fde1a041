"""Charts along the user's logged steps: the updates a view covers, and what is drawn."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

import made_series as made
from ampmon_server.charts import FIGURES, Source, View
from ampmon_server.model.aggregates.gradients import empty
from ampmon_server.model.series import UserSteps
from ampmon_server.queries import comparing
from ampmon_server.queries.drawing import draw
from ampmon_server.queries.sources import ChartRequest
from ampmon_server.store import Store
from batches import PARAMETERS, START, Trainer, adversarial


def log(store: Store, epochs: int, updates: int) -> Trainer:
    """A run on two ranks that logs each epoch's loss with the epoch as its step, and has one skip per epoch.

    Every tenth update is sampled, and half an epoch follows the last logged one.
    """
    trainer = Trainer(world_size=2)
    other = Trainer(trainer.run_id, rank=1, world_size=2)
    for epoch in range(1, epochs + 2):
        number = updates if epoch <= epochs else updates // 2
        records = trainer.updates(number, skipped=[3], sampled=range(0, number, 10))
        loss = msgspec.structs.replace(trainer.scalars({"loss": 1.0 / epoch}), user_step=epoch)
        store.ingest(trainer.batch([*records, loss] if epoch <= epochs else records))
        store.ingest(other.batch(other.updates(number, skipped=[3])))
    return trainer


def test_a_view_of_own_steps_is_one_of_their_updates(store: Store) -> None:
    """A view from epoch 3 to 5 covers the updates after epoch 3's loss was logged, up to epoch 5's."""
    trainer = log(store, epochs=9, updates=100)
    found = store.series(trainer.run_id, start=3, stop=5, by="user")
    assert (found.updates["first"].min(), found.updates["last"].max()) == (299, 498)
    assert found.updates["n"].sum() == 200
    assert found.user is not None
    assert found.user.forth(np.array([299, 399, 449])).tolist() == [3.0, 4.0, 4.5]


@pytest.mark.parametrize("own", [(None, None), (1, None), (1, 2), (None, 2)])
def test_by_own_steps_no_less_is_drawn(store: Store, own: tuple[int | None, int | None]) -> None:
    """A chart by logged steps has the same caption counts as by step, and its axis covers all its data."""
    run_id = log(store, epochs=3, updates=100).run_id
    start, stop = (None if end is None else 100 * end - 1 for end in own)
    for name in ("parameters", "parameter", "exponents", "underflow", "ranks", "skips"):
        by_step, by_own = (
            draw(store, run_id, name, ChartRequest(view))
            for view in (
                View(start, stop, parameter=PARAMETERS[0].name),
                View(*own, x="user", parameter=PARAMETERS[0].name),
            )
        )
        words = [
            each["layout"]["meta"]["caption"].split(". ")[0].rstrip(".")
            for each in (by_step, by_own)
        ]
        assert words[0] == words[1], name
        low, high = by_own["layout"]["xaxis"]["range"]
        x = np.concatenate([made.read(trace["x"]) for trace in by_own["data"]])
        assert low < np.nanmin(x) <= np.nanmax(x) < high, name


def test_a_bar_of_skips_lies_over_the_own_steps_of_its_updates(store: Store) -> None:
    """Bars of the skips chart cover the logged steps of the skipped updates, however narrow they are."""
    run_id = log(store, epochs=3, updates=100).run_id
    user = store.series(run_id, by="user").user
    assert user is not None
    skipped = user.forth(np.array([103, 203]))
    (bars,) = draw(store, run_id, "skips", ChartRequest(View(1, 3, x="user")))["data"]
    middles, half = made.read(bars["x"]), bars["width"] / 2
    assert half < 0.1
    assert ((middles - half <= skipped) & (skipped < middles + half)).all()


@pytest.mark.parametrize(("x", "jump", "zoom"), [("step", 254, (200, 300)), ("user", 50, (40, 60))])
def test_values_of_another_scaler_are_drawn_where_they_were_logged(
    store: Store, x: Any, jump: int, zoom: tuple[int, int]
) -> None:
    """Losses of a GAN's two scalers jump at the same x, and a zoom counts the values of both."""
    trainer, batch = adversarial([1.0] * 50 + [5.0] * 50)
    store.ingest(batch)
    whole, part = (
        draw(store, trainer.run_id, "scalars", ChartRequest(view))
        for view in (View(x=x), View(*zoom, x=x))
    )
    for figure in (whole, part):
        for line in figure["data"]:
            at, value, step = (made.read(line[key]) for key in ("x", "y", "customdata"))
            assert (at[value > 1].min(), step[value > 1].min()) == (jump, 254)
    caption = part["layout"]["meta"]["caption"]
    assert caption.count("20 values, 1 to 5") == 2
    assert caption.endswith("Placed by time, because logged with another scaler: loss.")
    drawn = comparing.draw(store, [trainer.run_id], "logged", View(*zoom, x=x))
    (line,) = drawn["data"]
    at, value = made.read(line["x"]), made.read(line["y"])
    assert (len(at), at[value > 1].min()) == (20, jump)


@pytest.mark.parametrize("zoom", [(200, 400), (290, 310), (100, 300), (300, 500), (300, None)])
@pytest.mark.parametrize("restart", ["resumed", "set back"])
def test_a_zoom_has_the_values_of_both_scalers_where_steps_and_times_disagree(
    store: Store, restart: str, zoom: tuple[int, int | None]
) -> None:
    """After a resume at an earlier step, or a clock set back, a zoom has the values of both scalers at its steps."""
    first, batch = adversarial([1.0] * 100)
    if restart == "resumed":
        store.ingest(batch)
        later = Trainer(first.run_id, resume_step=0, started=START + 3_600_000_000)
        store.ingest(adversarial([2.0] * 60, resumed=later)[1])
    else:
        back = [
            msgspec.structs.replace(each, time=each.time - 3_600_000_000 * (index >= 400))
            for index, each in enumerate(batch.records)
        ]
        store.ingest(msgspec.structs.replace(batch, records=tuple(back)))
    lines = draw(store, first.run_id, "scalars", ChartRequest(View(*zoom)))["data"]
    steps, values = (
        {line["name"]: made.read(line[key]).tolist() for line in lines} for key in ("x", "y")
    )
    assert steps["loss"] == steps["critic_loss"] == [*range(zoom[0] + 4, zoom[1] or 500, 5)]
    assert values["loss"] == values["critic_loss"]


def test_compared_over_time_values_of_another_scaler_keep_their_steps(store: Store) -> None:
    """In a comparison over time, a value logged with a GAN's second scaler has its step of the first one."""
    trainer, batch = adversarial([1.0] * 50)
    store.ingest(batch)
    by = comparing.Reference(name="loss")
    (line,) = comparing.draw(store, [trainer.run_id], "logged", View(x="time"), by)["data"]
    assert made.read(line["customdata"]).tolist() == [*range(4, 250, 5)]


def test_every_chart_can_be_drawn_by_own_steps(app: FastAPI, client: TestClient) -> None:
    """Every chart can be drawn by logged step, and is empty with an explanation for a run without any."""
    own: Store = app.state.service.store
    numbered, silent = log(own, epochs=3, updates=20), Trainer()
    own.ingest(silent.batch(silent.updates(5)))
    for name in FIGURES:
        answer = client.get(f"/api/v1/runs/{numbered.run_id}/figures/{name}?x=user&start=1&stop=3")
        assert answer.status_code == 200, name
    scale = client.get(f"/api/v1/runs/{numbered.run_id}/figures/scale?x=user").json()
    assert scale["layout"]["xaxis"]["title"]["text"] == "logged step"
    heatmap = client.get(f"/api/v1/runs/{numbered.run_id}/figures/parameters?x=user").json()
    assert "logged step %{x:,.4~f}: " in heatmap["data"][0]["hovertemplate"]
    for name in set(FIGURES) - made.OWN_AXIS - {"scalars", "parameter"}:
        layout = client.get(f"/api/v1/runs/{silent.run_id}/figures/{name}?x=user").json()["layout"]
        assert "No logged step" in layout["meta"]["empty"]


LINES = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), min_size=1, max_size=8).map(
    lambda rises: np.cumsum(np.array([(0, 0), *rises]), axis=0)
)


@settings(max_examples=40)
@given(line=LINES, user=st.integers(0, 500))
def test_back_is_the_first_step_that_is_forth(line: np.ndarray, user: int) -> None:
    """`back` gives the first step, at least 0, that `forth` maps to the user's step or beyond."""
    steps = UserSteps(*line.T)
    first = steps.back(user)
    assert steps.forth(np.array([first]))[0] >= user
    assert first == 0 or steps.forth(np.array([first - 1]))[0] < user


@pytest.mark.parametrize("name", ["scale", "skips"])
def test_own_steps_only_relabel_where_they_are_a_multiple(name: str) -> None:
    """If a logged step is always four updates, charts by it have the same texts as by step."""
    rows = made.wild(400, np.random.default_rng(3))
    user = UserSteps(np.array([0, 4000]), np.array([0, 1000]))
    charts = [
        FIGURES[name](Source(rows, empty(), user=user), view) for view in (View(), View(x="user"))
    ]
    assert charts[0]["layout"]["meta"] | {"caption": ""} == charts[1]["layout"]["meta"] | {
        "caption": ""
    }
    captions = [chart["layout"]["meta"]["caption"].split(" A bar")[0] for chart in charts]
    assert captions[0] == captions[1]
