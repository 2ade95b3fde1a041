"""Export of a run's rows: tables and file formats. Memory use does not depend on the length of the run."""

from __future__ import annotations

from ampmon_server.exchange.exporting.formats import FORMATS, Format, MissingFormat, TableWriter
from ampmon_server.exchange.exporting.tables import TABLES, Table, pieces


__all__ = ["FORMATS", "TABLES", "Format", "MissingFormat", "Table", "TableWriter", "pieces"]
