"""Declares the tables. Data of a run is keyed by `run_id` first, so one schema serves both a single file and a cluster.

This package contains no statements and assumes no engine. Times are microseconds since the epoch. A NaN or infinite
number is stored as null with its kind beside it (`store.engine.numbers`), because not every engine keeps NaN. `attempt`
numbers the process starts of a rank, and `stream` the pairs of rank and scaler name, both from 0 within the run.
"""

from __future__ import annotations

from ampmon_server.store.schema.tables.declaring import key_text, metadata
from ampmon_server.store.schema.tables.global_tables import (
    destinations,
    logins,
    messages,
    mutes,
    revoked_sessions,
    tokens,
)
from ampmon_server.store.schema.tables.run_tables import (
    alerts,
    attempts,
    events,
    forwarded,
    gradient_blocks,
    gradient_rollups,
    gradient_totals,
    headers,
    ledger,
    module_blocks,
    moves,
    parameter_rollups,
    rollups,
    runs,
    scalar_pages,
    scalar_rollups,
    skips,
    streams,
    update_pages,
)


__all__ = [
    "alerts",
    "attempts",
    "destinations",
    "events",
    "forwarded",
    "gradient_blocks",
    "gradient_rollups",
    "gradient_totals",
    "headers",
    "key_text",
    "ledger",
    "logins",
    "messages",
    "metadata",
    "module_blocks",
    "moves",
    "mutes",
    "parameter_rollups",
    "revoked_sessions",
    "rollups",
    "runs",
    "scalar_pages",
    "scalar_rollups",
    "skips",
    "streams",
    "tokens",
    "update_pages",
]
