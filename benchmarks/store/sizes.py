"""Bytes stored per update or sample, by table: all pages of a table, divided by the updates or samples it holds.

Runs are ingested batch by batch. Indexes and empty space count. The samples are exact, of the 148 parameters of a
narrow GPT-2. PostgreSQL is measured after a plain VACUUM, as autovacuum would leave it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, text

from ampmon_server.http.decoding import decode_batch
from ampmon_server.settings import Settings
from ampmon_server.store import Store
from ampmon_server.store.engine import engine
from ampmon_server.store.engine.opening import url_of
from benchmarks.paired import shown
from benchmarks.store import FULL, Effort, load
from benchmarks.store.databases import beside_postgresql
from benchmarks.store.real import real


BATCH, SAMPLED_BATCH = 1000, 20

TABLES = {
    ("update_pages", "rollups"): ("update", 16, 24),
    ("gradient_blocks",): ("sample", 4000, 4000),
    ("gradient_rollups",): ("sample", None, None),
    ("parameter_rollups",): ("sample", None, None),
}
"""Tables measured together, the unit to divide their bytes by, and the bars on SQLite and PostgreSQL."""


def measure(directory: Path, effort: Effort = FULL) -> list[dict[str, Any]]:
    """A row for each engine and kind of table. Takes a minute. Fills ``directory``."""
    settings = Settings(data_directory=directory / "sqlite")
    rows = _rows("SQLite", _ingested(settings, effort), effort, _of_sqlite)
    return beside_postgresql(
        rows,
        directory,
        lambda empty: _rows("PostgreSQL", _ingested(empty, effort), effort, _of_postgresql),
    )


def _ingested(settings: Settings, effort: Effort) -> Engine:
    """Ingest a run of updates and a run of samples in order, and open the database."""
    store = Store.open(settings)
    samples = real(effort.real_samples)
    for work in (
        load.plain(effort.stored_updates // BATCH, BATCH, samples),
        load.sampled(effort.stored_samples // SAMPLED_BATCH, SAMPLED_BATCH, samples),
    ):
        for batch in shown(work.batches, "batches"):
            store.ingest(decode_batch(batch))
    store.close()
    return engine.open_engine(url_of(settings))


def _rows(
    name: str, database: Engine, effort: Effort, bytes_of: Callable[[Engine, str], int]
) -> list[dict[str, Any]]:
    counts = {"update": effort.stored_updates + effort.stored_samples}
    counts["sample"] = effort.stored_samples
    rows = []
    for tables, (unit, *bars) in TABLES.items():
        per = sum(bytes_of(database, table) for table in tables) / counts[unit]
        bar = bars[name == "PostgreSQL"]
        holds = None if bar is None else "yes" if per <= bar else "no"
        rows.append(
            {
                "engine": name,
                "tables": ", ".join(tables),
                "bytes": round(per, 1),
                "per": unit,
                "bar": bar,
                "holds": holds,
                "note": None,
            }
        )
    database.dispose()
    return rows


def _of_sqlite(database: Engine, table: str) -> int:
    """Bytes of the pages of a table and its indexes. Its primary key is part of the table or one of the indexes."""
    of = "name = :table OR name IN (SELECT name FROM sqlite_master WHERE tbl_name = :table)"
    with engine.reading(database) as connection:
        statement = text(f"SELECT sum(pgsize) FROM dbstat WHERE {of}")
        return int(connection.execute(statement, {"table": table}).scalar_one() or 0)


def _of_postgresql(database: Engine, table: str) -> int:
    """Bytes of a table, its indexes and its values stored out of line. Vacuums the table first."""
    with database.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"VACUUM {table}")
        size = text("SELECT pg_total_relation_size(:table)")
        return int(connection.execute(size, {"table": table}).scalar_one())
