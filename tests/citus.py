"""What `ampmon db distribute` asks of Citus, as tables and functions of a real PostgreSQL that has no such extension.

They keep the rules by which Citus refuses a table, and note what was asked of them, in order. A connection finds them
by the names of a system catalogue where its search_path has this schema before pg_catalog.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import make_url

from postgres import Postgres


SCHEMA = "citus_stand_in"
SETUP = (Path(__file__).parent / "citus.sql").read_text()
READY = f"""
INSERT INTO {SCHEMA}.pg_extension VALUES ('citus');
INSERT INTO {SCHEMA}.pg_dist_node VALUES ('one', 5432, true, 'primary', false), ('two', 5432, true, 'primary', true),
    ('three', 5433, true, 'primary', true), ('four', 5432, true, 'secondary', true);
"""


class Cluster:
    """A database of a real PostgreSQL with the stand-in in it."""

    def __init__(self, server: Postgres, url: str) -> None:
        self._server = server
        self.database = str(make_url(url).database)
        path = f"-c search_path={SCHEMA},public,pg_catalog -c lock_timeout=200"
        self.url = make_url(url).update_query_dict({"options": path}).render_as_string()
        self.run(SETUP)

    def run(self, statements: str) -> None:
        """Run statements, with the names of the stand-in found first."""
        with self._server.connect(self.database) as connection:
            connection.execute(f"SET search_path = {SCHEMA}, public, pg_catalog")
            connection.execute(statements)  # type: ignore[call-overload]

    def asked(self) -> list[str]:
        """What the functions were called for, in order; what was rolled back is not among it."""
        query = f"SELECT what FROM {SCHEMA}.asked ORDER BY place"
        return [what for (what,) in self._server.execute(query, self.database)]
