"""The same batches in SQLite and PostgreSQL give the same answers, byte for byte.

`campaigns/matrices/` sets EVERYTHING, which requests all of each run in every view.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from ampmon import wire
from ampmon_server.charts import FIGURES
from ampmon_server.http.app import create_app
from ampmon_server.settings import Settings
from batches import START, Trainer
from databases import Databases, provide


PLAIN = UUID("018f0000-0000-7000-8000-000000000001")
SHARDED = UUID("018f0000-0000-7000-8000-000000000002")
FAR = UUID("018f0000-0000-7000-8000-000000000003")
EMPTY = UUID("018f0000-0000-7000-8000-000000000004")
ODD = UUID("018f0000-0000-7000-8000-000000000006")
GONE = UUID("018f0000-0000-7000-8000-000000000005")

EVERYTHING = "EVERYTHING" in os.environ

ODD_FLOATS = (math.nan, math.inf, -math.inf, -0.0, 5e-324, 2.2e-308, 1.7e308, 0.1, 1 / 3, 1e22)
ODD_NAMES = ("é", "e\u0301", "Z", "a", "ß", "ключ", "𝔼", "\u200fع", "A b", "_", "-", "~", "loss")
"""Names whose sort order depends on the locale."""


def trainer(run_id: UUID, number: int, **fields: Any) -> Trainer:
    """A process with fixed ids."""
    return Trainer(run_id, attempt_id=UUID(int=number), **fields)


def scaled(of: Trainer, values: Sequence[float]) -> list[wire.Update]:
    """Updates with these scales. Every third is skipped."""
    return [
        of.update(scale=each, scale_after=-each, skipped=index % 3 == 2)
        for index, each in enumerate(values)
    ]


def logged(of: Trainer, values: dict[str, float], **fields: Any) -> wire.Scalars:
    """Scalars, with non-finite values as on the wire."""
    kinds = {
        name: "nan" if math.isnan(each) else "inf" if each > 0 else "-inf"
        for name, each in values.items()
        if not math.isfinite(each)
    }
    finite = {name: None if name in kinds else each for name, each in values.items()}
    made = of.scalars(finite, kinds=kinds)  # type: ignore[arg-type]
    return wire.Scalars(
        **{name: fields.get(name, getattr(made, name)) for name in made.__struct_fields__}
    )


def plain() -> list[wire.Batch]:
    """A resumed run on two ranks, with losses and names of every kind."""
    first = trainer(PLAIN, 1, name="naïve 𝔼 \u200fع", project="Übung", world_size=2)
    other = trainer(PLAIN, 2, rank=1, world_size=2)
    again = trainer(PLAIN, 3, resume_step=150, world_size=2)
    start = [
        first.event("init"),
        *first.updates(300, skipped=[3, 100, 250], sampled=range(0, 300, 7)),
    ]
    beside = other.updates(200, skipped=[5, 199], sampled=[0])
    later = [
        *again.updates(400, skipped=[0, 17], sampled=range(0, 400, 40)),
        *(logged(again, dict.fromkeys(ODD_NAMES, float(n)), user_step=2 * n) for n in range(30)),
        again.event("finish"),
    ]
    return [
        first.batch(start[:200]),
        other.batch(beside[:60]),
        again.batch(later[:250]),
        first.batch(start[180:]),
        other.batch(beside[90:]),
        again.batch(later[260:]),
        first.batch(start[:50]),
    ]


def odd() -> list[wire.Batch]:
    """A run of non-finite, tiny, huge and negative numbers and unusual text."""
    of = trainer(ODD, 40)
    records = [
        *scaled(of, ODD_FLOATS),
        of.event("manual_set", stream="scaler", scale=math.nan, note="𝔼\x00\ud7ff", deep=[{}]),
    ]
    for each in ODD_FLOATS:
        records += [of.update(), logged(of, dict.fromkeys(ODD_NAMES, each))]
    # Twice in one step of a batch: the last value counts.
    records += [logged(of, {"loss": 1.0, "ключ": -0.0}), logged(of, {"loss": 2.0})]
    return [of.batch(records)]


def sharded() -> list[wire.Batch]:
    """A run with two scalers, sharded over three ranks."""
    batches = []
    for rank in range(3):
        for scaler in ("generator", "критик"):
            of = trainer(
                SHARDED, 10 + rank, rank=rank, scaler=scaler, layout="sharded", world_size=3
            )
            records = of.updates(120, skipped=[rank, 60], sampled=range(0, 120, 20))
            batches += [of.batch(records[:40]), of.batch(records[40:])]
    return batches


def far() -> list[wire.Batch]:
    """A run with the largest allowed steps, times and counts."""
    of = trainer(FAR, 20, resume_step=2**53 - 1 - 40, project="Übung")
    records = [
        of.update(
            time=wire.COUNT_MAX - 40 + n,
            duration=1e9,
            cost=1e9,
            growth_tracker=2**31 - 1,
            memory_peak=2**53 - 1,
        )
        for n in range(40)
    ]
    return [of.batch([*records, logged(of, {"loss": 1e-300}, user_step=2**53 - 1)])]


@pytest.fixture
def apps(
    tmp_path: Path, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[FastAPI]]:
    """A server on each engine at one fixed time, so that no run falls silent between two answers."""
    now_ns = time.time_ns()
    monkeypatch.setattr("time.time_ns", lambda: now_ns)
    provide(tmp_path / "sqlite")
    with databases.lent() as url:
        yield [
            create_app(Settings(data_directory=tmp_path / "sqlite", judging=False)),
            create_app(
                Settings(data_directory=tmp_path / "postgresql", database_url=url, judging=False)
            ),
        ]


class Pair:
    """Sends each request to both servers and checks that their answers are equal."""

    def __init__(self, clients: Sequence[TestClient]) -> None:
        self._clients = clients
        self.asked: set[str] = set()

    def __call__(self, path: str, method: str = "GET", **arguments: Any) -> Any:
        first, second = (
            client.request(method, f"/api/v1{path}", **arguments) for client in self._clients
        )
        assert first.status_code == second.status_code < 500, path
        assert first.content == second.content, path
        assert first.headers.get("etag") == second.headers.get("etag"), path
        self.asked.add(path.partition("?")[0])
        is_file = "Content-Disposition" in first.headers
        return first.json() if first.content and not is_file else None

    def pages(self, path: str) -> None:
        """Request all pages of a list."""
        following: str | None = ""
        for _ in range(100):
            cursor = f"&cursor={following}" if following else ""
            answer = self(f"{path}{cursor}")
            following = answer.get("next")  # a missing stream gives no list
            if following is None:
                return
        raise AssertionError(f"{path} has no end")


@pytest.fixture
def ask(apps: list[FastAPI]) -> Iterator[Pair]:
    clients = []
    for app in apps:
        client = TestClient(app, raise_server_exceptions=False, headers={"Host": "127.0.0.1"})
        client.__enter__()
        token = app.state.service.keys.token
        client.headers["Authorization"] = f"Bearer {token}"
        clients.append(client)
    yield Pair(clients)
    for client in clients:
        client.__exit__(None, None, None)


def play(ask: Pair, batches: Sequence[wire.Batch]) -> None:
    """Send every batch to both servers and compare the acknowledgements."""
    for batch in batches:
        content = wire.encode(batch)
        ask("/ingest", "POST", content=content, headers={"Content-Type": "application/msgpack"})


def ask_for_run(ask: Pair, run_id: UUID) -> None:
    """Request everything about a run, with and without each parameter."""
    path = f"/runs/{run_id}"
    ask(path)
    ask(f"{path}/diagnosis")
    ask(f"{path}/whatif")
    if run_id == PLAIN or EVERYTHING:  # it is slow
        ask(f"{path}/simulate?growth_interval=100")
    for drawn in ("scales", "losses"):
        ask(f"/runs/{drawn}?runs={run_id}")
    ask(f"{path}/skips/nearest?side=after&step=3")
    ask(f"{path}/skips/nearest?side=before&time=1790000000500000")
    ask(f"{path}/updates")
    ask.pages(f"{path}/updates?limit=77&start=3")
    for query in ("?", "?stream=1&"):
        ask.pages(f"{path}/skips{query}limit=20")
        ask.pages(f"{path}/events{query}limit=2")
        for rows in ("parameters", "modules"):
            for step in ("", "step=100"):
                ask(f"{path}/{rows}{query}{step}")
    for what in ("updates", "skips", "events", "samples", "scalars"):
        ask(f"{path}/export?what={what}")
    names = ask(f"{path}/scalars").get("names", [])
    for name in {each["name"] for each in names}:
        ask(f"{path}/scalars", params={"name": name, "start": 1, "limit": 20})


VIEWS = (
    f"x=time&width=1000&start={START + 700_000}&stop={START + 9_000_000}",
    "x=step&width=40&start=17&stop=211",
    "x=step&width=1000",
    "x=step&width=300&start=140",
    "x=step&width=40&stop=16",
    "x=time&width=40",
    "x=user&width=40",
    "x=user&width=1000&start=4&stop=40",
    "stream=1",
)
"""Windows, widths and axes that read rows or cells of several levels, and another scaler."""


def ask_for_figures(ask: Pair, run_id: UUID, views: Sequence[str]) -> None:
    """Request every figure in each view, the slow simulation only in the first."""
    for name in FIGURES:
        for view in views[:1] if name == "simulated" else views:
            ask(f"/runs/{run_id}/figures/{name}?{view}")


def not_asked(app: FastAPI, ask: Pair) -> set[str]:
    """The routes reading runs that were not requested for the plain run."""
    made = {path.replace(str(PLAIN), "{run_id}") for path in ask.asked}
    made = {path.rpartition("/")[0] + "/{name}" if "/figures/" in path else path for path in made}
    reading = {
        path.removeprefix("/api/v1")
        for path, methods in app.openapi()["paths"].items()
        if "get" in methods and path.startswith("/api/v1/runs")
    }
    return reading - made


def test_every_answer_is_the_same(apps: list[FastAPI], ask: Pair) -> None:
    """Every route reading runs gives equal bytes on both engines, with batches shuffled and repeated."""
    for run_id in (EMPTY, GONE):
        of = trainer(run_id, 30 + run_id.int % 10)
        play(ask, [of.batch(headers=(of.attempt,))])
    batches = [*plain(), *odd(), *sharded(), *far()]
    random.Random(4).shuffle(batches)
    play(ask, [*batches, *batches[::3]])
    ask(f"/runs/{GONE}", "DELETE")
    origin = {"Origin": "http://127.0.0.1"}
    ask(f"/runs/{SHARDED}", "PATCH", json={"name": "ключ", "tags": ["é", "z"]}, headers=origin)

    ask("/runs/groups")
    for query in ("", "?project=Übung", "?status=finished", "?status=silent", "?archived=true"):
        ask(f"/runs{query}")
    ask.pages("/runs?limit=1")
    for index, run_id in enumerate((PLAIN, ODD, SHARDED, FAR, EMPTY, GONE)):
        if index < 2 or EVERYTHING:
            ask_for_run(ask, run_id)
            ask_for_figures(ask, run_id, VIEWS if EVERYTHING else VIEWS[index : index + 1])
        for path in ("", "/updates", "/parameters", "/figures/scale?width=60&start=10&stop=500"):
            ask(f"/runs/{run_id}{path}")
    assert not_asked(apps[0], ask) == set()
