"""What `ampmon db distribute` asks of Citus, as tables and functions of a real PostgreSQL that has no such extension.

They keep the rules by which Citus refuses a table, and note what was asked of them, in order. A connection finds them
by the names of a system catalogue where its search_path has this schema before pg_catalog.
"""

from __future__ import annotations

from sqlalchemy import make_url

from postgres import Postgres


SCHEMA = "citus_stand_in"
SETUP = f"""
CREATE SCHEMA {SCHEMA};
SET search_path = {SCHEMA}, public, pg_catalog;
CREATE TABLE pg_extension (extname text);
CREATE TABLE pg_available_extensions (name text);
CREATE TABLE pg_dist_node (nodename text, nodeport int, isactive bool, noderole text, shouldhaveshards bool);
CREATE TABLE pg_dist_partition (logicalrelid regclass, partmethod "char", partkey text, colocationid int);
CREATE TABLE asked (place serial, what text);
CREATE TABLE coordinator AS SELECT true AS here;

CREATE FUNCTION citus_is_coordinator() RETURNS bool LANGUAGE sql AS 'SELECT here FROM {SCHEMA}.coordinator';
CREATE FUNCTION column_to_column_name(t regclass, key text) RETURNS text LANGUAGE sql AS 'SELECT key';

CREATE FUNCTION create_reference_table(t regclass) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO {SCHEMA}.asked (what) VALUES ('copy ' || t);
    INSERT INTO {SCHEMA}.pg_dist_partition VALUES (t, 'n', NULL, 1);
END $$;

CREATE FUNCTION create_distributed_table(t regclass, by text, colocate_with text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE together int := 2;
BEGIN
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', t);
    INSERT INTO {SCHEMA}.asked (what) VALUES ('spread ' || t || ' by ' || by || ' beside ' || colocate_with);
    IF colocate_with <> 'none' THEN
        SELECT colocationid INTO STRICT together FROM {SCHEMA}.pg_dist_partition
            WHERE logicalrelid = colocate_with::regclass;
    END IF;
    PERFORM 1 FROM pg_index x JOIN pg_attribute a ON a.attrelid = t AND a.attnum = ANY (x.indkey) AND a.attname = by
        WHERE x.indrelid = t AND x.indisprimary;
    IF NOT FOUND THEN RAISE 'cannot create constraint on %', t; END IF;
    PERFORM 1 FROM pg_constraint c WHERE c.conrelid = t AND c.contype = 'f' AND NOT EXISTS (
        SELECT 1 FROM {SCHEMA}.pg_dist_partition p WHERE p.logicalrelid = c.confrelid AND p.colocationid = together);
    IF FOUND THEN RAISE 'cannot create foreign key constraint since relations are not colocated'; END IF;
    INSERT INTO {SCHEMA}.pg_dist_partition VALUES (t, 'h', by, together);
END $$;

CREATE FUNCTION truncate_local_data_after_distributing_table(t regclass) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO {SCHEMA}.asked (what) VALUES ('empty ' || t);
    PERFORM 1 FROM {SCHEMA}.pg_dist_partition WHERE logicalrelid = t;
    IF NOT FOUND THEN RAISE 'supplied parameter is not a distributed relation'; END IF;
    PERFORM 1 FROM pg_constraint c WHERE c.confrelid = t AND NOT EXISTS (
        SELECT 1 FROM {SCHEMA}.pg_dist_partition p WHERE p.logicalrelid = c.conrelid);
    IF FOUND THEN RAISE 'cannot truncate a table referenced in a foreign key constraint by a local table'; END IF;
END $$;
"""
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
