"""An SQLite file with pages that cannot be read any more: what is not in them is served, and what is gets no 500."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from uuid import UUID

from httpx2 import Response
from starlette.testclient import TestClient

from ampmon import wire
from ampmon_server.app import create_app
from ampmon_server.settings import Settings
from ampmon_server.store import Sender, Store
from batches import Trainer


BEFORE, HIT, AFTER = (UUID(bytes=bytes([n]) * 16) for n in (0x11, 0x77, 0xEE))
PATHS = (
    "",
    "/updates?limit=10000",
    "/skips",
    "/figures/scale?width=200",
    "/parameters",
    "/diagnosis",
)
URL = "http://127.0.0.1:8267"


def trained(store: Store, run_id: UUID) -> None:
    trainer = Trainer(run_id)
    records = [*trainer.updates(1500, skipped=[3], sampled=[0, 20]), trainer.scalars({"loss": 1.0})]
    store.ingest(trainer.batch(records), Sender("ada"))


def damage(settings: Settings) -> int:
    """Overwrite each page that holds something of one run and nothing of the others; how many there were."""
    file = settings.server_directory / "ampmon.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    pages = 0
    with file.open("r+b") as handle:
        for place in range(0, file.stat().st_size, size):
            handle.seek(place)
            page = handle.read(size)
            if HIT.bytes in page and BEFORE.bytes not in page and AFTER.bytes not in page:
                handle.seek(place)
                handle.write(b"\xde\xad\xbe\xef" * (size // 4))
                pages += 1
    return pages


def asked(settings: Settings, run_id: UUID) -> list[Response]:
    """What a server that is started on the file answers of a run, to each path."""
    app = create_app(replace(settings, judging=False))
    with TestClient(app, base_url=URL, raise_server_exceptions=False) as client:
        client.headers["Authorization"] = f"Bearer {app.state.service.keys.token}"
        return [client.get(f"/api/v1/runs/{run_id}{path}") for path in PATHS]


def test_what_is_not_damaged_is_served(settings: Settings, store: Store) -> None:
    """Runs in sound pages are told as before, and go on; of the others it is said what to do, and never with a 500."""
    for run_id in (BEFORE, HIT, AFTER):
        trained(store, run_id)
    store.close()
    sound = {
        run_id: [each.content for each in asked(settings, run_id)] for run_id in (BEFORE, AFTER)
    }
    assert damage(settings) > 10

    for run_id, told in sound.items():
        assert [each.content for each in asked(settings, run_id)] == told
    spoilt = asked(settings, HIT)
    assert {each.status_code for each in spoilt} <= {200, 503}
    assert [True for each in spoilt if "`ampmon db verify`" in each.text]

    app = create_app(settings)
    with TestClient(app, base_url=URL) as client:
        client.headers["Authorization"] = f"Bearer {app.state.service.keys.token}"
        trainer = Trainer(BEFORE, resume_step=1500)
        content = wire.encode(trainer.batch(trainer.updates(5)))
        headers = {"Content-Type": "application/msgpack"}
        assert client.post("/api/v1/ingest", content=content, headers=headers).status_code == 200
        assert client.get("/api/v1/runs").json()["total"] == 3
