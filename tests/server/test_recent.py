"""A short-lived cache of what the charts of one run read in common."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from ampmon_server.charts import View
from ampmon_server.queries.drawing import draw
from ampmon_server.queries.sources import ChartRequest
from ampmon_server.queries.whatif_reader import simulator_of
from ampmon_server.store import NotFound, Store
from ampmon_server.store.pages.recent import LIFE_S, MOST, Recent
from ampmon_server.store.samples import parameter_rollups, samples
from ampmon_server.store.updates import updates
from batches import Trainer
from waiting import DEADLINE_S, wait_for


def test_who_comes_meanwhile_waits_for_the_first() -> None:
    """Eight threads that ask for one key at once share one read."""
    recent: Recent[object] = Recent()
    begun, go = threading.Event(), threading.Event()
    readings = []

    def read() -> object:
        begun.set()
        go.wait(DEADLINE_S)
        readings.append(object())
        return readings[-1]

    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(recent.get, "key", read) for _ in range(8)]
        assert begun.wait(DEADLINE_S)
        go.set()
        found = {id(each.result(DEADLINE_S)) for each in asked}
    assert (len(readings), len(found)) == (1, 1)


def test_a_reading_lives_for_a_moment() -> None:
    """A read is repeated after LIFE_S, for another key, and once MOST newer keys came."""
    now = [0.0]
    recent: Recent[int] = Recent(lambda: now[0])
    assert [recent.get("a", lambda: 1), recent.get("a", lambda: 2)] == [1, 1]
    assert recent.get("b", lambda: 3) == 3
    now[0] += LIFE_S
    assert recent.get("a", lambda: 4) == 4
    for other in range(MOST):
        recent.get(other, lambda: 5)
    assert recent.get("a", lambda: 6) == 6


def test_what_fails_is_tried_again() -> None:
    """A failed read raises to its caller, and the next call reads again."""
    recent: Recent[int] = Recent()

    def fail() -> int:
        raise LookupError

    with pytest.raises(LookupError):
        recent.get("a", fail)
    assert recent.get("a", lambda: 1) == 1


@pytest.mark.storage
def test_a_series_is_shared_until_the_run_moves_on(store: Store) -> None:
    """A run's series is shared as read-only arrays until an update changes the run."""
    trainer = Trainer()
    store.ingest(trainer.batch(trainer.updates(4, sampled=[0])))
    first, again = store.series(trainer.run_id), store.series(trainer.run_id)
    assert first is again
    with pytest.raises(ValueError, match="read-only"):
        first.updates["first"][0] = 7
    store.ingest(trainer.batch(trainer.updates(1)))
    assert store.series(trainer.run_id).updates["first"].tolist() == [0, 1, 2, 3, 4]


def test_threads_that_wait_for_a_series_hold_no_connection(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one of five threads reads a series, the others leave all connections to other requests."""
    trainer = Trainer()
    store.ingest(trainer.batch(trainer.updates(4)))
    held, window = Store.held, updates.window
    asked, begun, go = [], threading.Event(), threading.Event()

    def noted(*of: Any) -> Any:
        asked.append(of)
        return held(*of)

    def slow(*of: Any) -> Any:
        begun.set()
        go.wait(DEADLINE_S)
        return window(*of)

    monkeypatch.setattr(Store, "held", noted)
    monkeypatch.setattr(updates, "window", slow)
    connections: Any = store._engine.pool
    with ThreadPoolExecutor(5) as pool:
        try:
            found = [pool.submit(store.series, trainer.run_id)]
            assert begun.wait(DEADLINE_S)
            found += [pool.submit(store.series, trainer.run_id) for _ in range(4)]
            wait_for(lambda: len(asked) == 5, "all threads to know the version of the run")
            wait_for(lambda: connections.checkedout() == 1, "all threads but one to return theirs")
        finally:
            go.set()
        assert len({id(each.result(DEADLINE_S)) for each in found}) == 1


@pytest.mark.storage
def test_simulations_are_shared_until_the_run_moves_on(store: Store) -> None:
    """A run's simulator is shared until the run has new updates."""
    trainer = Trainer()
    store.ingest(trainer.batch(trainer.updates(40, skipped=[10, 20])))
    first = simulator_of(store, trainer.run_id)
    assert simulator_of(store, trainer.run_id) is first
    store.ingest(trainer.batch(trainer.updates(10)))
    assert simulator_of(store, trainer.run_id).history.last == first.history.last + 10


def test_a_chart_without_samples_reads_none(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts of a view share its updates, and only a chart that draws samples reads them."""
    trainer, read = Trainer(), []
    store.ingest(trainer.batch(trainer.updates(40, sampled=range(40))))
    for module in (updates, samples):
        window = module.window

        def noted(*of: Any, module: Any = module, window: Any = window) -> Any:
            read.append(module)
            return window(*of)

        monkeypatch.setattr(module, "window", noted)
    for view in (View(3, 30, parameter="head.weight"), View(parameter="head.weight")):
        asked = ChartRequest(view)
        for name in ("skips", "timing", "parameters", "parameter", "scalars"):
            draw(store, trainer.run_id, name, asked)
        assert read == [updates]
        draw(store, trainer.run_id, "norm", asked)
        assert read == [updates, samples]
        read.clear()


def test_parameters_are_read_where_the_updates_of_their_chart_are(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range of the user's own steps is converted once, since their line depends on the number of columns."""
    trainer, found = Trainer(), []
    store.ingest(trainer.batch(trainer.updates(40, sampled=range(40))))
    logged = [replace(trainer.scalars({"loss": 1.0}), ordinal=at, user_step=at) for at in range(40)]
    store.ingest(trainer.batch(logged))
    read = parameter_rollups.read

    def noted(connection: Any, scaler: Any, stream: Any, stretch: Any, *of: Any) -> Any:
        found.append(stretch)
        return read(connection, scaler, stream, stretch, *of)

    monkeypatch.setattr(parameter_rollups, "read", noted)
    view = View(3, 30, x="user", parameter="head.weight")
    draw(store, trainer.run_id, "parameter", ChartRequest(view))
    series = store.series(trainer.run_id, start=3, stop=30, by="user", columns=view.columns)
    assert found[0] is series.stretch


@pytest.mark.parametrize("name", ["parameter", "histogram"])
def test_a_chart_of_a_parameter_that_is_not_chosen_reads_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Without a parameter, its charts say what to do, and an unknown run is still not found."""
    trainer = Trainer()
    store.ingest(trainer.batch(trainer.updates(4, sampled=[0])))
    monkeypatch.setattr(updates, "window", None)
    figure = draw(store, trainer.run_id, name, ChartRequest())
    assert figure["layout"]["meta"]["empty"].startswith("No parameter is chosen")
    with pytest.raises(NotFound):
        draw(store, UUID(int=1), name, ChartRequest())
