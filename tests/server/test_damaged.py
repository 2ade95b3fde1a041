"""A server on an SQLite file with damaged pages serves the intact data and never answers 500."""

from __future__ import annotations

import random
import re
import shutil
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from httpx2 import Response
from sqlalchemy import text, update
from starlette.testclient import TestClient

from ampmon import wire
from ampmon_server.background import upkeep
from ampmon_server.http.app import create_app
from ampmon_server.queries.comparing import loss_of
from ampmon_server.settings import Settings
from ampmon_server.store import ANYONE, Edit, Receipt, Sender, Store, Unreadable, Unusable
from ampmon_server.store.engine import engine
from ampmon_server.store.schema.tables import runs
from batches import Trainer
from typed import typed
from waiting import wait_for


BEFORE, HIT, AFTER = (UUID(bytes=bytes([n]) * 16) for n in (0x11, 0x77, 0xEE))
LEAVES = (0x0A, 0x0D)
"""The first byte of an SQLite leaf page, which holds rows and no links to other pages."""
PATHS = (
    "",
    "/updates?limit=10000",
    "/skips",
    "/figures/scale?width=200",
    "/parameters",
    "/diagnosis",
)
URL = "http://127.0.0.1:8267"
TEXTS = {"'{'": "json", "'7'": "kind of json", "CAST(x'ff' AS TEXT)": "utf-8"}
"""Texts that cannot be read as the JSON that a column holds."""


def trained(store: Store, run_id: UUID) -> None:
    """Store a run of poorly compressible numbers, so that it fills whole pages in each table."""
    trainer, chance = Trainer(run_id), random.Random(run_id.int)
    updates = [
        msgspec.structs.replace(
            each, cost=1e6 * chance.random(), memory_peak=chance.getrandbits(40)
        )
        for each in trainer.updates(6000, skipped=[3], sampled=[0, 20])
    ]
    store.ingest(trainer.batch(updates), Sender("ada"))
    losses = [
        msgspec.structs.replace(
            trainer.scalars({name: chance.random() for name in ("loss", "lr", "norm", "score")}),
            ordinal=step,
        )
        for step in range(1500)
    ]
    store.ingest(trainer.batch(losses), Sender("ada"))


def damage(settings: Settings, *, leaves: bool = False) -> int:
    """Overwrite each page with data of the run HIT and none of BEFORE or AFTER. Return the number of pages.

    With ``leaves``, spare the pages above leaves, which also lead to other runs.
    """
    file = settings.server_directory / "ampmon.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    pages = 0
    with file.open("r+b") as handle:
        for index in range(0, file.stat().st_size, size):
            handle.seek(index)
            page = handle.read(size)
            if leaves and page[0] not in LEAVES:
                continue
            if HIT.bytes in page and BEFORE.bytes not in page and AFTER.bytes not in page:
                handle.seek(index)
                handle.write(b"\xde\xad\xbe\xef" * (size // 4))
                pages += 1
    return pages


def asked(settings: Settings, run_id: UUID) -> list[Response]:
    """Start a server on the file and return its answers about a run, one for each path."""
    app = create_app(replace(settings, judging=False))
    with TestClient(app, base_url=URL, raise_server_exceptions=False) as client:
        client.headers["Authorization"] = f"Bearer {app.state.service.keys.token}"
        return [client.get(f"/api/v1/runs/{run_id}{path}") for path in PATHS]


def test_what_is_not_damaged_is_served(settings: Settings, store: Store) -> None:
    """Runs in intact pages are served and ingested as before. A damaged run gets 503 with advice, never 500.

    The server is not ready after a failed write until the next succeeds.
    """
    for run_id in (BEFORE, HIT, AFTER):
        trained(store, run_id)
    store.close()
    sound = {
        run_id: [each.content for each in asked(settings, run_id)] for run_id in (BEFORE, AFTER)
    }
    assert damage(settings) > 10

    for run_id, expected in sound.items():
        assert [each.content for each in asked(settings, run_id)] == expected
    spoilt = asked(settings, HIT)
    assert {each.status_code for each in spoilt} <= {200, 503}
    assert [True for each in spoilt if "`ampmon db verify`" in each.text]

    app = create_app(settings)
    with TestClient(app, base_url=URL) as client:
        client.headers["Authorization"] = f"Bearer {app.state.service.keys.token}"
        headers = {"Content-Type": "application/msgpack"}
        for run_id, status in ((HIT, 503), (BEFORE, 200)):
            trainer = Trainer(run_id, resume_step=3000)
            records = [*trainer.updates(5), trainer.scalars({"loss": 1.0})]
            content = wire.encode(trainer.batch(records))
            sent = client.post("/api/v1/ingest", content=content, headers=headers)
            assert (sent.status_code, client.get("/readyz").status_code) == (status, status)
        assert client.get("/api/v1/runs").json()["total"] == 3


BESIDE = (UUID(bytes=b"\x33" * 16), UUID(bytes=b"\xbb" * 16))
"""Runs in the pages next to the damaged ones, which deleting rows may touch."""


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of old runs in adjacent pages, one of them unreadable."""
    settings = Settings(data_directory=tmp_path_factory.mktemp("damaged"))
    store = Store.open(settings)
    heard = (BESIDE[0], BEFORE, HIT, AFTER, BESIDE[1])
    for run_id in sorted(heard):  # neighbours by key are then neighbours by time stored too
        trained(store, run_id)
        with engine.writing(store._engine) as connection:
            of_run = runs.c.run_id == run_id.bytes
            at = 10**9 + heard.index(run_id)
            connection.execute(update(runs).where(of_run).values(silent_after=at))
    store.close()
    assert damage(settings, leaves=True) > 10
    return settings.server_directory / "ampmon.db"


@pytest.fixture
def damaged_and_old(damaged: Path, settings: Settings) -> None:
    """A copy of that file in the data directory."""
    shutil.copy(damaged, settings.server_directory)


def pruned(settings: Settings) -> set[UUID]:
    """The runs away from the damaged pages that are pruned down to their last few rows."""
    with closing(sqlite3.connect(settings.server_directory / "ampmon.db")) as connection:
        query = "SELECT sum(updates) BETWEEN 1 AND 256 FROM update_pages WHERE run_id = ?"
        return {
            run_id
            for run_id in (BEFORE, AFTER)
            if connection.execute(query, [run_id.bytes]).fetchone() == (1,)
        }


@contextmanager
def keeping(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server that prunes rows older than 30 days at short intervals."""
    monkeypatch.setattr(upkeep, "FIRST_S", 0.01)
    monkeypatch.setattr(upkeep, "EVERY_S", 0.1)
    with TestClient(create_app(replace(settings, keep_rows_days=30))):
        yield


@pytest.mark.usefixtures("damaged_and_old")
def test_a_run_that_cannot_be_read_keeps_no_other_from_being_pruned(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server prunes the other runs, and its log names the run it cannot read."""
    with keeping(settings, monkeypatch):
        wait_for(lambda: pruned(settings) == {BEFORE, AFTER})
        wait_for(lambda: f"Not pruned: run {HIT}: The database" in caplog.text)
    assert "`ampmon db verify` says where" in caplog.text


@pytest.mark.usefixtures("damaged_and_old")
def test_the_command_names_what_it_could_not_prune(settings: Settings) -> None:
    """`ampmon db prune` prunes the other runs, names the unreadable one in its last line and exits with code 2."""
    where = ("--data-dir", settings.data_directory)
    code, _, err = typed("db", "prune", "--yes", "--at-once", "--keep-rows-days", "30", *where)

    assert code == 2
    *others, last = err.splitlines()
    assert last.startswith("ampmon db prune: these runs are not pruned: ")
    assert (str(HIT) in last, str(BEFORE) in last, str(AFTER) in last) == (True, False, False)
    assert any(each.startswith("not pruned: run ") for each in others)
    assert pruned(settings) == {BEFORE, AFTER}


def test_what_nobody_foresaw_is_reported_and_pruning_goes_on(
    settings: Settings,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An unexpected error in a pruning sweep is logged with its traceback, and a later sweep prunes."""
    trained(store, BEFORE)
    columns = ", ".join(each.name for each in runs.c if each.name != "run_id")
    with engine.writing(store._engine) as connection:
        connection.execute(text("UPDATE runs SET silent_after = 1000000000"))
        connection.execute(
            text(f"INSERT INTO runs (run_id, {columns}) SELECT x'77', {columns} FROM runs")
        )
    store.close()
    with keeping(settings, monkeypatch):
        wait_for(lambda: bool(caplog.records))
        assert pruned(settings) == set()
        with closing(sqlite3.connect(settings.server_directory / "ampmon.db")) as connection:
            connection.execute("DELETE FROM runs WHERE run_id = x'77'")
            connection.commit()
        wait_for(lambda: pruned(settings) == {BEFORE})

    assert "Pruning failed and is retried in an hour" in caplog.records[0].getMessage()
    assert caplog.records[0].exc_info


@pytest.mark.parametrize("text_", TEXTS, ids=TEXTS.values())
@pytest.mark.parametrize(
    ("place", "paths"),
    [
        ("attempts.versions", ("", "/diagnosis")),
        ("attempts.config", ("", "/diagnosis")),
        ("headers.settings", ("", "/diagnosis")),
        ("events.detail", ("/events", "/diagnosis")),
        ("skips.culprits", ("/skips", "/diagnosis")),
    ],
)
def test_a_damaged_text_hides_no_other(
    settings: Settings, store: Store, place: str, paths: Sequence[str], text_: str
) -> None:
    """A text that cannot be read gives 503 with advice, never 500, where it is shown. All else is served."""
    for run_id in (HIT, BEFORE):
        trainer = Trainer(run_id)
        records = trainer.updates(30, skipped=[3], sampled=[7])
        store.ingest(trainer.batch([trainer.event("init"), *records]))
    store.close()
    table, column = place.split(".")
    with closing(sqlite3.connect(settings.server_directory / "ampmon.db")) as connection:
        connection.execute(f"UPDATE {table} SET {column} = {text_} WHERE run_id = ?", [HIT.bytes])
        connection.commit()
    app = create_app(replace(settings, judging=False))
    with TestClient(app, base_url=URL, raise_server_exceptions=False) as client:
        client.headers["Authorization"] = f"Bearer {app.state.service.keys.token}"
        for path in ("", "/skips", "/events", "/diagnosis", "/updates", "/figures/scale"):
            answer = client.get(f"/api/v1/runs/{HIT}{path}")
            assert answer.status_code == (503 if path in paths else 200), path
            assert ("`ampmon db verify` says where" in answer.text) == (path in paths)
            assert client.get(f"/api/v1/runs/{BEFORE}{path}").status_code == 200
        assert client.get("/api/v1/runs").json()["total"] == 2


@pytest.mark.parametrize(
    "damage_",
    [
        "update_pages SET data = 'x'",
        "rollups SET data = 'x'",
        "gradient_blocks SET data = 'x'",
        "headers SET parameters = 'x'",
        "streams SET first_step = 'x'",
        "skips SET kinds = 'x'",
        "attempts SET host = x'ff'",
    ],
)
def test_a_value_of_another_type_hides_no_other(
    settings: Settings, store: Store, damage_: str
) -> None:
    """Where a number or packed data is text, or text is bytes, the run gives 503 where that is read, never 500."""
    for run_id in (HIT, BEFORE):
        trainer = Trainer(run_id)
        store.ingest(trainer.batch(trainer.updates(600, skipped=[3], sampled=[7])))
    store.close()
    with closing(sqlite3.connect(settings.server_directory / "ampmon.db")) as connection:
        connection.execute(f"UPDATE {damage_} WHERE run_id = ?", [HIT.bytes])
        connection.commit()
    damaged, sound = asked(settings, HIT), asked(settings, BEFORE)
    assert {each.status_code for each in damaged} == {200, 503}
    assert [True for each in damaged if "`ampmon db verify`" in each.text]
    assert {each.status_code for each in sound} == {200}


def test_columns_of_another_block_hide_no_other(settings: Settings, store: Store) -> None:
    """Two blocks of samples that have each other's bins give 503 where they are read, never 500."""
    for run_id in (HIT, BEFORE):
        trainer = Trainer(run_id)
        store.ingest(trainer.batch(trainer.updates(60, sampled=range(40))))
    store.close()
    with closing(sqlite3.connect(settings.server_directory / "ampmon.db")) as connection:
        of_run = "FROM gradient_blocks WHERE run_id = ? ORDER BY samples"
        (low, bins), (high, others) = connection.execute(
            f"SELECT rowid, bins {of_run}", [HIT.bytes]
        )
        assert bins != others
        for row, swapped in ((low, others), (high, bins)):
            connection.execute(
                "UPDATE gradient_blocks SET bins = ? WHERE rowid = ?", [swapped, row]
            )
        connection.commit()
    damaged, sound = asked(settings, HIT), asked(settings, BEFORE)
    assert {each.status_code for each in damaged} == {200, 503}
    assert {each.status_code for each in sound} == {200}


def test_sums_that_are_another_column_are_damage(settings: Settings, store: Store) -> None:
    """Sums with the bytes of another column give 503 where they are read, and `ampmon db verify` reports them."""
    trainer = Trainer(HIT)
    store.ingest(trainer.batch(trainer.updates(60, sampled=range(40))))
    store.close()
    with closing(sqlite3.connect(settings.server_directory / "ampmon.db")) as connection:
        connection.execute("UPDATE gradient_blocks SET totals = magnitudes")
        connection.commit()
    assert {each.status_code for each in asked(settings, HIT)} == {200, 503}
    done = typed("db", "verify", "--data-dir", settings.data_directory)
    assert (done.code, "gradient_blocks, stream 0" in done.out) == (1, True)


@pytest.mark.parametrize("value", ["x'01'", "'x'"])
@pytest.mark.parametrize(
    "place", ["rollups.data", "update_pages.data", "scalar_pages.data", "streams.last_step"]
)
def test_a_damaged_run_hides_no_other_in_the_list(store: Store, place: str, value: str) -> None:
    """The list draws the scale and shows the loss of each run but the damaged one."""
    for run_id in (HIT, BEFORE):
        trainer = Trainer(run_id)
        store.ingest(trainer.batch([*trainer.updates(600), trainer.scalars({"loss": 1.0})]))
    with engine.writing(store._engine) as connection:
        table, column = place.split(".")
        damage = text(f"UPDATE {table} SET {column} = {value} WHERE run_id = :hit")
        connection.execute(damage, {"hit": HIT.bytes})
    drawn = set(store.scales([HIT, BEFORE]))
    losses = {run_id for run_id in (HIT, BEFORE) if loss_of(store, run_id)}
    assert drawn == ({HIT, BEFORE} if table == "scalar_pages" else {BEFORE})
    assert losses == ({BEFORE} if table in {"scalar_pages", "streams"} else {HIT, BEFORE})


@pytest.mark.parametrize("text_", TEXTS, ids=TEXTS.values())
@pytest.mark.parametrize(
    "place", ["runs.tags", "runs.name", "runs.project", "runs.state", "streams.scaler"]
)
def test_a_damaged_text_of_a_run_hides_no_other_in_the_list(
    store: Store, place: str, text_: str
) -> None:
    """The list names a run that is damaged, and shows its numbers, the other runs and their groups as before."""
    for run_id in (HIT, BEFORE):
        trainer = Trainer(run_id)
        store.ingest(trainer.batch(trainer.updates(30, skipped=[3])))
        store.edit(run_id, Edit(tags=("sweep",)))
    before = {UUID(each.run_id): each for each in store.runs().rows}
    table, column = place.split(".")
    with engine.writing(store._engine) as connection:
        damage = text(f"UPDATE {table} SET {column} = {text_} WHERE run_id = :hit")
        connection.execute(damage, {"hit": HIT.bytes})
    listed = store.runs()
    after = {UUID(each.run_id): each for each in listed.rows}
    assert (listed.total, list(after)) == (2, list(before))
    assert after[BEFORE] == before[BEFORE]
    assert (after[HIT].updates, after[HIT].skipped) == (30, 1)
    groups = store.groups()
    assert groups.projects["default"] == 2 - (column == "project")
    assert groups.tags == {"sweep": 2 - (column == "tags")}
    if "ff" in text_ or column == "tags":
        assert after[HIT].name == "Unreadable; `ampmon db verify` says where"


@pytest.mark.parametrize("damage_", ["updates = 'x'", "name = x'ff00'", "started = 1.5"])
def test_a_value_of_another_type_hides_no_other_run(
    settings: Settings, store: Store, damage_: str
) -> None:
    """Where a number is text or a text is bytes, the list names that run, which itself is a 503, never a 500."""
    for run_id in (HIT, BEFORE):
        trainer = Trainer(run_id)
        store.ingest(trainer.batch(trainer.updates(30, skipped=[3])))
    with engine.writing(store._engine) as connection:
        connection.execute(
            text(f"UPDATE runs SET {damage_} WHERE run_id = :hit"), {"hit": HIT.bytes}
        )
    store.close()
    app = create_app(replace(settings, judging=False))
    with TestClient(app, base_url=URL, raise_server_exceptions=False) as client:
        client.headers["Authorization"] = f"Bearer {app.state.service.keys.token}"
        listed = {each["run_id"]: each for each in client.get("/api/v1/runs").json()["runs"]}
        for path in ("", "/diagnosis"):
            answer = client.get(f"/api/v1/runs/{HIT}{path}")
            assert answer.status_code == 503
            assert "`ampmon db verify` says where" in answer.text
    assert listed[str(HIT)]["name"] == "Unreadable; `ampmon db verify` says where"
    assert listed[str(HIT)]["skipped"] == listed[str(BEFORE)]["skipped"] == 1
    assert (listed[str(BEFORE)]["name"], listed[str(BEFORE)]["updates"]) == ("run", 30)


@pytest.mark.parametrize("column", ["updates", "project"])
def test_a_null_hides_no_other_run(settings: Settings, store: Store, column: str) -> None:
    """A null in a column that allows none is damage, as another type is."""
    for run_id in (HIT, BEFORE):
        trainer = Trainer(run_id)
        store.ingest(trainer.batch(trainer.updates(30)))
    store.close()
    path = settings.data_directory / "server" / "ampmon.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        (before,) = connection.execute(
            "SELECT sql FROM sqlite_master WHERE name = 'runs'"
        ).fetchone()
        lax = re.sub(rf"(\b{column} .*?)NOT NULL", r"\1", before, count=1)
        for sql in (lax, before):
            connection.execute("PRAGMA writable_schema = ON")
            connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = 'runs'", [sql])
            connection.execute("PRAGMA writable_schema = RESET")  # reads the schema again
            if sql == lax:
                connection.execute(f"UPDATE runs SET {column} = NULL WHERE run_id = ?", [HIT.bytes])
    with closing(Store.open(settings)) as opened:
        listed = {UUID(each.run_id): each.name for each in opened.runs().rows}
        assert listed == {HIT: "Unreadable; `ampmon db verify` says where", BEFORE: "run"}
        assert opened.groups().projects == {"default": 2 - (column == "project")}


@pytest.mark.parametrize("damage_", ["update_pages SET data = x'01'", "runs SET deleted = 2"])
def test_a_damaged_run_keeps_no_other_from_being_stored(store: Store, damage_: str) -> None:
    """Of batches in one transaction, only those of a damaged run are rejected."""
    hit, other = Trainer(HIT), Trainer(BEFORE)
    store.ingest(hit.batch(hit.updates(3)))
    with engine.writing(store._engine) as connection:
        connection.execute(text(f"UPDATE {damage_}"))
        connection.execute(text("UPDATE runs SET version = version + 1"))  # forget the cached page
    asked = [(each.batch(each.updates(2)), ANYONE) for each in (hit, other)]
    refused, receipt = store.ingest_together(asked)
    assert isinstance(refused, Unreadable)
    assert isinstance(receipt, Receipt)
    assert store.run(BEFORE)[0].updates == 2


def test_a_run_with_a_damaged_owner_can_be_deleted(settings: Settings, store: Store) -> None:
    """The server's own token deletes a run even if its owner cannot be read."""
    trainer = Trainer(HIT)
    store.ingest(trainer.batch(trainer.updates(3)))
    with engine.writing(store._engine) as connection:
        connection.execute(text("UPDATE runs SET owner = CAST(x'ff' AS TEXT)"))
    store.close()
    app = create_app(settings)
    with TestClient(app, base_url=URL, raise_server_exceptions=False) as client:
        client.headers["Authorization"] = f"Bearer {app.state.service.keys.token}"
        answers = [client.delete(f"/api/v1/runs/{HIT}").status_code for _ in range(2)]

    assert answers == [204, 404]


@pytest.mark.parametrize(
    ("table", "rows"), [("update_pages", "/updates?"), ("scalar_pages", "/scalars?name=loss&")]
)
def test_a_page_that_is_damaged_hides_no_other(
    settings: Settings, store: Store, table: str, rows: str
) -> None:
    """A damaged page of rows gives 503 for its own rows only. Charts, skips and other pages are served."""
    trained(store, HIT)
    store.close()
    with closing(sqlite3.connect(settings.server_directory / "ampmon.db")) as connection:
        connection.execute(
            f"UPDATE {table} SET data = CAST(substr(data, 1, 40) || x'5A5A' || substr(data, 43) AS BLOB)"
            " WHERE bucket = 2"
        )
        connection.commit()
    app = create_app(replace(settings, judging=False))
    with TestClient(app, base_url=URL, raise_server_exceptions=False) as client:
        client.headers["Authorization"] = f"Bearer {app.state.service.keys.token}"
        of_run = f"/api/v1/runs/{HIT}"
        drawn = ("/figures/scale?width=200", "/figures/scalars?width=20")
        for path in ("", "/skips", *drawn, "/scalars", f"{rows}limit=255"):
            assert client.get(of_run + path).status_code == 200
        hidden = client.get(f"{of_run}{rows}start=600&limit=10")
        assert hidden.status_code == 503
        assert "a page of rows is damaged" in hidden.text
        assert "`ampmon db verify` says where" in hidden.text
        assert client.get(f"{of_run}{rows}start=768&limit=10").json()["step"][0] == 768


@pytest.mark.parametrize(
    ("table", "path", "detail"),
    [
        ("UPDATE tokens SET scopes = '{'", "/api/v1/runs", "Cannot check the token"),
        ("UPDATE alembic_version SET version_num = CAST(x'ff' AS TEXT)", "/readyz", "not answer"),
    ],
    ids=["token", "schema"],
)
def test_damage_outside_runs_is_a_503(
    settings: Settings, store: Store, table: str, path: str, detail: str
) -> None:
    """A request that needs a damaged token or schema revision gets 503, never 500."""
    store.close()
    app = create_app(replace(settings, judging=False))
    with TestClient(app, base_url=URL, raise_server_exceptions=False) as client:
        secret, _ = app.state.service.tokens.new("one", "ada", ["read"])
        with engine.writing(app.state.service.store._engine) as connection:
            connection.execute(text(table))
        answer = client.get(path, headers={"Authorization": f"Bearer {secret}"})
    assert answer.status_code == 503
    assert detail in answer.text


@pytest.mark.skipif(sys.version_info < (3, 11), reason="sqlite3 does not say what is wrong")
def test_a_damaged_schema_is_named(settings: Settings, store: Store) -> None:
    """A file whose schema is no longer UTF-8 is refused in one line by the server and commands, and can be restored."""
    store.close()
    file = settings.server_directory / "ampmon.db"
    where = ("--data-dir", settings.data_directory)
    whole, copy = (settings.data_directory / name for name in ("whole.db", "copy.db"))
    assert typed("db", "backup", whole, *where).code == 0
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    file.write_bytes(file.read_bytes().replace(b"NOT NULL", b"NOT N\xa1LL", 1))
    with pytest.raises(Unusable, match=r"cannot be used .*: restore it"):
        Store.open(settings)
    for command in (("verify",), ("prune", "--yes"), ("backup", copy)):
        code, _, err = typed("db", *command, *where)
        (line,) = err.splitlines()
        assert code == 2
        assert line.startswith(f"ampmon db {command[0]}: ")
    assert typed("db", "restore", whole, *where).code == 0
    Store.open(settings).close()
