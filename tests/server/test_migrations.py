"""Every migration with data in it: what older versions have stored is upgraded, read as it was, and goes on.

`stored/` holds databases as those versions wrote them, table by table, beside what they answered: two runs, one of them
resumed, on two ranks, with skips, samples, losses and numbers that are not finite; and the stone of a third.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from alembic import command
from sqlalchemy import Connection, MetaData
from starlette.testclient import TestClient

from ampmon_server import migrations
from ampmon_server.app import create_app
from ampmon_server.cli import main
from ampmon_server.figures import FIGURES
from ampmon_server.settings import Settings
from ampmon_server.store import engine
from batches import Trainer


STORED = sorted((Path(__file__).parent / "stored").glob("*.json"))
# On PostgreSQL the oldest data goes through every migration, and the newest has every kind of row.
CASES = [
    *(pytest.param(path, "sqlite", id=f"{path.stem}-sqlite") for path in STORED),
    *(
        pytest.param(path, "postgresql", id=f"{path.stem}-postgresql")
        for path in (STORED[0], STORED[-1])
    ),
]


@pytest.fixture
def database(request: pytest.FixtureRequest) -> str | None:
    """The URL of an empty PostgreSQL database; None for SQLite."""
    return request.getfixturevalue("empty_database") if request.param == "postgresql" else None


@pytest.fixture
def stored(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What an older version has stored and said."""
    return json.loads(request.param.read_text())


@pytest.fixture
def older(settings: Settings, stored: dict[str, Any]) -> Settings:
    """A database of the older version's schema, with what it has stored."""
    (settings.data_directory / "server" / "ampmon.db").unlink(missing_ok=True)
    opened = engine.open_engine(settings.url)
    with engine.writing(opened) as connection:
        command.upgrade(migrations.config(connection), stored["revision"])
        _fill(connection, stored["tables"])
    opened.dispose()
    return settings


def _fill(connection: Connection, tables: dict[str, Any]) -> None:
    metadata = MetaData()
    metadata.reflect(connection)
    for table in metadata.sorted_tables:
        told = tables.get(table.name, {"columns": [], "rows": []})
        rows = [
            {name: _value(each) for name, each in zip(told["columns"], row, strict=True)}
            for row in told["rows"]
        ]
        if rows:
            connection.execute(table.insert(), rows)


def _value(told: Any) -> Any:
    return base64.b64decode(told["base64"]) if isinstance(told, dict) else told


def upgraded(settings: Settings) -> int:
    """The exit code of `ampmon db upgrade`."""
    return main(["db", "upgrade", *where(settings)])


def where(settings: Settings) -> list[str]:
    """What tells a command of the database."""
    if settings.database_url is not None:
        return ["--database-url", settings.database_url]
    return ["--data-dir", str(settings.data_directory)]


@pytest.fixture
def ask(older: Settings, capsys: pytest.CaptureFixture[str]) -> Any:
    """Asks a server of this version on the upgraded database; gives what is in its answer."""
    assert upgraded(older) == 0
    assert "2 of 2 runs are rolled up" in capsys.readouterr().out
    app = create_app(older)
    with TestClient(app) as client:
        headers = {"Authorization": f"Bearer {app.state.service.keys.token}", "Host": "127.0.0.1"}

        def get(path: str) -> Any:
            answer = client.get(f"/api/v1{path}", headers=headers)
            assert answer.status_code == 200, answer.text
            return answer.json()

        get.app = app  # type: ignore[attr-defined]
        yield get


def same(now: Any, then: Any) -> None:
    """That everything which was told then is told now; more may be."""
    if isinstance(then, dict):
        for name, value in then.items():
            same(now[name], value)
    elif isinstance(then, list):
        assert len(now) == len(then)
        for each, value in zip(now, then, strict=True):
            same(each, value)
    else:
        assert now == (pytest.approx(then) if isinstance(then, float) else then)


@pytest.mark.parametrize(("stored", "database"), CASES, indirect=True)
def test_what_was_stored_is_told_as_before_and_goes_on(
    ask: Callable[[str], Any], stored: dict[str, Any], older: Settings
) -> None:
    """Every answer is as before, all figures draw, `db verify` finds nothing, and a stored run can be resumed."""
    listed = {run["run_id"]: run for run in ask("/runs")["runs"]}

    assert set(listed) == set(stored["said"])
    for run_id, said in stored["said"].items():
        same(listed[run_id], said["summary"])
        same(ask(f"/runs/{run_id}/updates"), said["updates"])
        same(ask(f"/runs/{run_id}/skips")["skips"], said["skips"])
        same(ask(f"/runs/{run_id}/events")["events"], said["events"])
        same(ask(f"/runs/{run_id}/parameters")["parameters"], said["parameters"])
        for name in FIGURES:
            assert ask(f"/runs/{run_id}/figures/{name}")["data"] is not None
    assert main(["db", "verify", *where(older)]) == 0
    goes_on(ask, *next(iter(stored["said"].items())))


def goes_on(ask: Any, run_id: str, said: dict[str, Any]) -> None:
    """Check that a resumed process of a stored run adds its updates to those of before."""
    trainer = Trainer(UUID(run_id), resume_step=1000)
    ask.app.state.service.store.ingest(trainer.batch(trainer.updates(10, skipped=[4], sampled=[0])))
    summary = ask(f"/runs/{run_id}")

    assert summary["updates"] == said["summary"]["updates"] + 10
    assert summary["skipped"] == said["summary"]["skipped"] + 1
    assert ask(f"/runs/{run_id}/updates?start=1000")["step"] == list(range(1000, 1010))
