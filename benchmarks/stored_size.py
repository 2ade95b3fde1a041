"""Bytes of an exact sample of 148 parameters in SQLite, from training a narrow and a wider GPT-2.

Every update is sampled, and samples arrive one per batch, as live, or many at once. Counted are the blocks and sums
over parameters, then rollups too: only packed data, without the empty rest of pages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import text

from ampmon import wire
from ampmon_server.demo.model import ModelSize
from ampmon_server.settings import Settings
from ampmon_server.store import Store
from ampmon_server.store.engine import engine
from ampmon_server.store.engine.opening import url_of
from benchmarks.paired import shown
from benchmarks.store.real import SIZE, real
from benchmarks.store.samples import SCALE, Real


SAMPLES = 32
WIDER = ModelSize(layers=12, heads=4, width=256, context=16, batch=1)
STARTED, SPACING = 1_790_000_000_000_000, 50_000
STREAM = "scaler"

BLOCKS = ("gradient_blocks", "gradient_totals")
ROLLUPS = ("gradient_rollups", "parameter_rollups")


def measure(directory: Path) -> list[dict[str, Any]]:
    """A row for each width and batch size. Takes a minute or two. Fills ``directory``."""
    rows = []
    for size in (SIZE, WIDER):
        run = real(SAMPLES, size)
        for words, batch in (("one a batch", 1), (f"{SAMPLES} a batch", SAMPLES)):
            place = directory / f"{size.width}-{batch}"
            rows.append(_row(run, size, words, _ingested(run, place, batch)))
    return rows


def _row(run: Real, size: ModelSize, words: str, held: dict[str, int]) -> dict[str, Any]:
    elements = sum(parameter.numel for parameter in run.parameters)
    stored = sum(held[table] for table in BLOCKS) / SAMPLES
    return {
        "model": f"width {size.width}, {elements / 1e6:.1f} million elements",
        "samples": words,
        "bytes_per_sample": round(stored),
        "bytes_with_rollups": round(stored + sum(held[table] for table in ROLLUPS) / SAMPLES),
        "bar": 4000,
        "holds": "yes" if stored <= 4000 else "no",
    }


def _ingested(run: Real, place: Path, size: int) -> dict[str, int]:
    """Bytes of data by table, after all samples, one per update, have arrived in batches of ``size``."""
    settings = Settings(data_directory=place)
    store = Store.open(settings)
    run_id, attempt_id = uuid4(), uuid4()
    attempt = wire.AttemptHeader(
        run_id=run_id,
        attempt_id=attempt_id,
        project="benchmark",
        name=place.name,
        owner="benchmark",
        started=STARTED,
    )
    stream = wire.StreamHeader(
        stream=STREAM, scaler="GradScaler", device="cpu", parameters=run.parameters
    )
    for first in shown(range(0, SAMPLES, size), place.name):
        batch = wire.Batch(
            schema_version=wire.SCHEMA_VERSION,
            run_id=run_id,
            attempt_id=attempt_id,
            headers=(attempt, stream),
            records=tuple(_update(run, step) for step in range(first, first + size)),
        )
        store.ingest(batch)
    store.close()
    return _bytes(settings)


def _update(run: Real, step: int) -> wire.Update:
    return wire.Update(
        stream=STREAM,
        seq=step,
        ordinal=step,
        time=STARTED + SPACING * step,
        scale=SCALE,
        scale_after=SCALE,
        growth_tracker=step,
        event="steady",
        optimizers=(wire.OptimizerStep(optimizer="AdamW", path="unscaled"),),
        gradients=run.samples[step].to_wire(),
    )


def _bytes(settings: Settings) -> dict[str, int]:
    database = engine.open_engine(url_of(settings))
    with engine.reading(database) as connection:
        held = {
            table: int(connection.scalar(text(f"SELECT sum(length(data)) FROM {table}")) or 0)
            for table in (*BLOCKS, *ROLLUPS)
        }
    database.dispose()
    return held
