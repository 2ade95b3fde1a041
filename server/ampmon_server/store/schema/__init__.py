"""The tables, and the migrations that create them."""

from __future__ import annotations

from ampmon_server.store.schema import global_tables, tables  # declare all tables of the metadata


__all__ = ["global_tables", "tables"]
