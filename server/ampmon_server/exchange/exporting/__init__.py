"""A run's rows as files: what there is to export, and the formats. Memory does not depend on the run's length."""

from __future__ import annotations

from ampmon_server.exchange.exporting.formats import FORMATS, Format, MissingFormat, TableWriter
from ampmon_server.exchange.exporting.tables import TABLES, Table, pieces


__all__ = ["FORMATS", "TABLES", "Format", "MissingFormat", "Table", "TableWriter", "pieces"]
