"""Forwarding to TensorBoard and MLflow delivers each value once, across kills and outages.

`campaigns/forwarding/` kills the server at any time.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from fastapi import FastAPI
from sqlalchemy import text
from starlette.testclient import TestClient

from ampmon import wire
from ampmon_server.background.forwarding import forwarder
from ampmon_server.background.writer import Writer
from ampmon_server.exchange.events import _values as read_events
from ampmon_server.http.app import create_app
from ampmon_server.settings import Settings
from ampmon_server.store import Store
from ampmon_server.store.engine import engine
from ampmon_server.store.forwarding import Portion
from batches import Trainer as Batches
from posted import PostedRun
from serving import Server
from training import Trainer, stored
from waiting import wait_for
from warm import completed


os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # telemetry uses a thread, which a fork would lose
Get = Callable[[str], Any]
Send = Callable[[wire.Batch], dict[str, Any]]
MLFLOW = pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow|sqlalchemy")


def event_file(folder: Path) -> Path | None:
    """The only event file under a folder, or None."""
    return next(iter(folder.rglob("*tfevents*")), None)


def points(folder: Path) -> list[tuple[str, int, float]]:
    """(tag, step, value) in file order, as the importer reads them."""
    file = event_file(folder)
    return [] if file is None else [(each.tag, each.step, each.value) for each in read_events(file)]


def written(folder: Path) -> int:
    file = event_file(folder)
    return 0 if file is None else file.stat().st_size


def scales(folder: Path) -> int:
    """The number of updates in a folder."""
    return sum(tag == "amp/scale" for tag, _, _ in points(folder))


def rows(server: Server, query: str) -> list[Any]:
    """Query the server's database while it runs."""
    database = server.directory / "server" / "ampmon.db"
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return connection.execute(query).fetchall()


def is_whole(server: Server) -> bool:
    """Whether the only run is forwarded to its end."""
    query = "SELECT r.version = f.version FROM runs r JOIN forwarded f USING (run_id)"
    return rows(server, query) == [(1,)]


def check_whole(get: Get, run_id: str, found: list[tuple[str, int, float]]) -> None:
    """Check that every stored update and logged value was forwarded exactly once."""
    assert [each for each, times in Counter(each[:2] for each in found).items() if times > 1] == []
    updates = get(f"/runs/{run_id}/updates?limit=1000000")
    expected = {
        ("amp/scale", step): scale
        for step, scale in zip(updates["step"], updates["scale"], strict=True)
    }
    for name in get(f"/runs/{run_id}/scalars")["names"]:
        values = get(f"/runs/{run_id}/scalars?name={name['name']}&limit=1000000")
        expected |= {
            (name["name"], step): value
            for step, value in zip(values["step"], values["value"], strict=True)
        }
    held = {(tag, step): value for tag, step, value in found}
    missing = expected.keys() - held.keys()
    assert missing == set()
    wrong = [
        key
        for key, value in expected.items()
        if value is not None and held[key] != pytest.approx(value)
    ]
    assert wrong == []


def test_a_training_is_seen_in_tensorboard(
    tmp_path: Path, new_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorBoard's reader finds every update and logged value, while the run continues and after its end."""
    folder = tmp_path / "board"
    server = new_server(options=["--forward", f"tensorboard:{folder}"])
    monkeypatch.setenv("AMPMON_URL", server.url)
    monkeypatch.setenv("AMPMON_MODE", "online")
    with Trainer() as trainer:
        trainer.train(150)
        wait_for(lambda: scales(folder) == 150, "the updates of a run that goes on")
        trainer.train(50)
        trainer.finish()
    wait_for(lambda: sum(tag == "loss" for tag, _, _ in points(folder)) == 200, "the last loss")
    file = event_file(folder)
    assert file is not None
    assert file.parent.relative_to(folder).parts == ("tests", f"trainer-{trainer.run_id[-8:]}")
    assert stored(server, trainer.run_id) == 200
    check_whole(server.get, trainer.run_id, points(folder))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(file.parent), size_guidance={"scalars": 0, "tensors": 0})
    board.Reload()
    assert set(board.Tags()["scalars"]) == {
        *("amp/scale", "amp/skipped", "amp/skipped_total", "loss"),
        *("amp/zero_share", "amp/subnormal_share", "amp/headroom_bits"),
    }
    skipped = [each.value for each in board.Scalars("amp/skipped_total")]
    assert (len(skipped), skipped[-1]) == (200, 2.0)


def posted(server: Server, updates: int) -> PostedRun:
    """A running run. One in 1000 updates is skipped."""
    run = PostedRun(server)
    for index in range(0, updates, 1000):
        run.updates(min(1000, updates - index) - 1, sampled=False)
        run.updates(1, skipped=True)
    return run


KILLED = """
import os, signal
sync = os.fsync

def fsync(file):
    if "tfevents" in os.readlink(f"/proc/self/fd/{{file}}"):
        if os.fstat(file).st_size > {written}:
            os.ftruncate(file, {written})  # what the kernel had when a kill came in the middle of the writes
        os.kill(os.getpid(), signal.SIGKILL)
    sync(file)

os.fsync = fsync
"""
"""Kills a server that syncs an event file, keeping ``written`` bytes of it, before the cursor moves."""


def test_what_a_kill_left_behind_is_written_again_and_not_twice(
    tmp_path: Path, new_server: Callable[..., Server]
) -> None:
    """After kills that leave no, some, torn or all records, the file holds each value once."""
    folder = tmp_path / "board"
    server = new_server()
    run = posted(server, 300)
    run.event("finish")
    server.stop()
    server.options = ["--forward", f"tensorboard:{folder}"]
    for written in (0, 17, 5000, 2**40):
        server.before = KILLED.format(written=written)
        server.start()
        assert server.process is not None
        wait_for(lambda: server.process.poll() is not None, "the kill")
        left = event_file(folder)
        assert left is not None
        assert left.stat().st_size == written or written == 2**40
    server.before = ""
    server.start()
    wait_for(lambda: is_whole(server), "all updates")
    assert scales(folder) == 300
    check_whole(server.get, str(run.run_id), points(folder))


def test_a_destination_that_is_down_delays_nothing_and_catches_up(
    tmp_path: Path, new_server: Callable[..., Server]
) -> None:
    """A destination outage is logged once and shown on /metrics, and does not delay ingest. Later all is forwarded."""
    folder = tmp_path / "board"
    folder.write_text("a file in the folder's place")
    server = new_server(options=["--forward", f"tensorboard:{folder}"])
    run = PostedRun(server)
    run.updates(10)

    def gauge(name: str) -> float:
        return metric(server.request("GET", "/metrics").data.decode(), f"ampmon_forward_{name}")

    wait_for(lambda: gauge("failures_total") >= 2, "two attempts")
    assert (gauge("up"), gauge("runs_waiting")) == (0, 1)
    run.updates(10)
    assert server.get(run.path)["updates"] == 20
    assert (
        server.printed.count(
            "Forwarding to tensorboard is paused until the destination works again"
        )
        == 1
    )
    folder.unlink()
    wait_for(lambda: scales(folder) == 20, "all updates")
    wait_for(lambda: gauge("up") == 1, "the end of the outage")
    assert server.printed.count("Forwarding to tensorboard works again") == 1
    wait_for(lambda: gauge("points_total") == 20, "the count of forwarded points")


def metric(text: str, name: str) -> float:
    (found,) = re.findall(rf'^{name}{{destination="\w+"}} (\S+)$', text, re.MULTILINE)
    return float(found)


@pytest.fixture(scope="module")
def empty_mlflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow database, shared because creating one takes seconds."""
    file = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    mlflow(f"sqlite:///{file}").search_experiments()
    return file


@pytest.fixture
def uri(tmp_path: Path, empty_mlflow: Path) -> str:
    return f"sqlite:///{shutil.copy(empty_mlflow, tmp_path)}"


def mlflow(uri: str) -> Any:
    """MLflow's own client."""
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def held(uri: str, name: str) -> int:
    """The number of values of a metric in MLflow, over all runs."""
    with closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as connection:
        query = "SELECT count(*) FROM metrics WHERE key = ?"
        return int(connection.execute(query, [name]).fetchone()[0])


def mlflow_runs(uri: str, experiment: str = "tests") -> list[Any]:
    """The runs of an MLflow experiment, empty if it does not exist."""
    known = mlflow(uri).get_experiment_by_name(experiment)
    return list(mlflow(uri).search_runs([known.experiment_id])) if known else []


def histories(uri: str, run_id: str, experiment: str) -> dict[str, list[Any]]:
    """The metrics of a run in MLflow by name, empty if it has no such run."""
    runs = mlflow_runs(uri, experiment)
    found = [each for each in runs if each.data.tags.get("ampmon.run_id") == run_id]
    assert len(found) <= 1
    return {
        name: mlflow(uri).get_metric_history(each.info.run_id, name)
        for each in found
        for name in each.data.metrics
    }


def check_mlflow(get: Get, run_id: str, uri: str) -> None:
    """Check that MLflow has one run with all stored values, each once."""
    found = histories(uri, run_id, "tests")
    check_whole(
        get,
        run_id,
        [(name, each.step, each.value) for name, of in found.items() for each in of],
    )


@pytest.fixture
def app(settings: Settings, uri: str) -> FastAPI:
    """An app in this process, since another would import MLflow again, which takes seconds."""
    return create_app(replace(settings, forward=(f"mlflow:{uri}",)))


@MLFLOW
@pytest.mark.rare
def test_a_run_is_seen_in_mlflow(uri: str, client: TestClient, send: Send) -> None:
    """A run becomes one MLflow run with every value once, and finishes with it."""
    trainer = Batches(name="trainer", project="tests")
    updates = trainer.updates(120, skipped=[7, 50], sampled=[3, 90])
    logged = [trainer.scalars({"loss": 0.5})]
    send(trainer.batch([*updates, *logged, trainer.event("finish")]))
    wait_for(lambda: [each.info.status for each in mlflow_runs(uri)] == ["FINISHED"], "its end")
    run_id = str(trainer.run_id)
    check_mlflow(lambda path: client.get(f"/api/v1{path}").json(), run_id, uri)
    assert (mlflow_runs(uri)[0].info.run_name, held(uri, "loss")) == ("trainer", 1)


@MLFLOW
@pytest.mark.rare
def test_a_run_that_mlflow_does_not_take_keeps_no_other_waiting(
    uri: str, client: TestClient, send: Send, caplog: pytest.LogCaptureFixture
) -> None:
    """A run deleted in MLflow is logged once and skipped. Other runs are forwarded, and the destination stays up."""
    gone, other = Batches(project="tests"), Batches(project="tests")
    send(gone.batch(gone.updates(1)))
    wait_for(lambda: held(uri, "amp/scale") == 1, "the first run")
    (run,) = mlflow_runs(uri)
    mlflow(uri).delete_run(run.info.run_id)
    send(gone.batch(gone.updates(1)))
    wait_for(lambda: f"Run {gone.run_id} is not forwarded to mlflow" in caplog.text, "the line")
    send(other.batch(other.updates(1)))
    wait_for(lambda: histories(uri, str(other.run_id), "tests"), "the other run")
    assert metric(client.get("/metrics").text, "ampmon_forward_up") == 1
    assert caplog.text.count("is not forwarded to mlflow") == 1


class Choosy:
    """A destination that rejects what ``rejects`` says of the deliveries so far, the new one last."""

    key = "choosy"

    def __init__(self, rejects: Callable[[list[UUID]], bool]) -> None:
        self.delivered: list[UUID] = []
        self._rejects = rejects

    def deliver(self, portion: Portion) -> str:
        self.delivered.append(portion.run_id)
        if self._rejects(self.delivered):
            raise forwarder.Rejected
        return "here"

    def forward(self, store: Store, then_s: float = 0.0) -> int:
        """Forward until a run was accepted and ``then_s`` have passed. Return the number of forwarded points."""
        writer = Writer()
        forwarding = forwarder.Forwarder("choosy", self, store, writer)

        async def until_accepted() -> None:
            task = asyncio.ensure_future(forwarding.keep_forwarding())
            await asyncio.to_thread(wait_for, lambda: forwarding.points, "an accepted run")
            await asyncio.sleep(then_s)
            task.cancel()

        asyncio.run(until_accepted())
        writer.close()
        return forwarding.points


def test_a_rejected_run_is_tried_again_although_it_does_not_change(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that the destination rejected is offered again later, and once more is enough if that is accepted."""
    for name, value in {"POLL_S": 0.01, "SKEW_US": 0, "SPARED_S": 0.2}.items():
        monkeypatch.setattr(forwarder, name, value)
    destination = Choosy(lambda delivered: delivered.count(delivered[-1]) == 1)
    store.begin_forwarding(destination.key)  # what is stored before is not forwarded
    trainer = Batches()
    store.ingest(trainer.batch(trainer.updates(3)))
    assert (destination.forward(store, then_s=0.5), len(destination.delivered)) == (3, 2)


def test_runs_that_are_always_rejected_are_logged_once_and_delay_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that is rejected each time is logged once. Only a few such runs are tried before one that changed."""
    for name, value in {"POLL_S": 0.0, "SKEW_US": 0, "SPARED_S": 0.0, "RUNS_MAX": 3}.items():
        monkeypatch.setattr(forwarder, name, value)
    good = Batches()

    def rejects(delivered: list[UUID]) -> bool:
        if len(delivered) == 100:
            store.ingest(good.batch(good.updates(1)))
        return delivered[-1] != good.run_id

    destination = Choosy(rejects)
    store.begin_forwarding(destination.key)
    for trainer in [Batches() for _ in range(20)]:
        store.ingest(trainer.batch(trainer.updates(1)))
    destination.forward(store)
    assert 100 <= destination.delivered.index(good.run_id) < 100 + 2 * forwarder.RUNS_MAX
    assert caplog.text.count("is not forwarded to choosy") == 20


def test_a_damaged_run_delays_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that cannot be read is logged once, and the runs after it are forwarded."""
    for name, value in {"POLL_S": 0.01, "SKEW_US": 0, "SPARED_S": 0.0}.items():
        monkeypatch.setattr(forwarder, name, value)
    destination = Choosy(lambda _: False)
    store.begin_forwarding(destination.key)
    hit, other = Batches(), Batches()
    for trainer in (hit, other):
        store.ingest(trainer.batch(trainer.updates(3)))
    with engine.writing(store._engine) as connection:
        damage = text("UPDATE update_pages SET data = x'01' WHERE run_id = :hit")
        connection.execute(damage, {"hit": hit.run_id.bytes})
    assert (destination.forward(store, then_s=0.1), destination.delivered) == (3, [other.run_id])
    assert caplog.text.count(f"Run {hit.run_id} is not forwarded to choosy") == 1


@pytest.mark.parametrize(
    ("named", "why"),
    [
        (["neptune:x"], "--forward neptune: write tensorboard:DIR or mlflow:URI"),
        (["tensorboard:"], "--forward tensorboard: write tensorboard:DIR"),
        (["tensorboard:a", "tensorboard:./a"], "the same destination is named twice"),
    ],
)
def test_a_destination_that_is_none_is_refused(tmp_path: Path, named: list[str], why: str) -> None:
    """The server does not start with an invalid or repeated destination, and says why."""
    options = [option for each in named for option in ("--forward", each)]
    ended = completed(["serve", "--port", "0", "--data-dir", str(tmp_path), *options])
    assert (ended.returncode, why in ended.stderr) == (2, True), ended.stderr
