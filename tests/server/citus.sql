-- Tables and functions of Citus that `ampmon db distribute` uses, with the rules by which Citus refuses a table.
CREATE SCHEMA citus_stand_in;
SET search_path = citus_stand_in, public, pg_catalog;
CREATE TABLE pg_extension (extname text);
CREATE TABLE pg_available_extensions (name text);
CREATE TABLE pg_dist_node (nodename text, nodeport int, isactive bool, noderole text, shouldhaveshards bool);
CREATE TABLE pg_dist_partition (logicalrelid regclass, partmethod "char", partkey text, colocationid int);
CREATE TABLE asked (place serial, what text);
CREATE TABLE coordinator AS SELECT true AS here;

CREATE FUNCTION citus_is_coordinator() RETURNS bool LANGUAGE sql AS 'SELECT here FROM citus_stand_in.coordinator';
CREATE FUNCTION column_to_column_name(t regclass, key text) RETURNS text LANGUAGE sql AS 'SELECT key';

CREATE FUNCTION create_reference_table(t regclass) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO citus_stand_in.asked (what) VALUES ('copy ' || t);
    INSERT INTO citus_stand_in.pg_dist_partition VALUES (t, 'n', NULL, 1);
END $$;

CREATE FUNCTION create_distributed_table(t regclass, by text, colocate_with text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE together int := 2;
BEGIN
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', t);
    INSERT INTO citus_stand_in.asked (what) VALUES ('spread ' || t || ' by ' || by || ' beside ' || colocate_with);
    IF colocate_with <> 'none' THEN
        SELECT colocationid INTO STRICT together FROM citus_stand_in.pg_dist_partition
            WHERE logicalrelid = colocate_with::regclass;
    END IF;
    PERFORM 1 FROM pg_index x JOIN pg_attribute a ON a.attrelid = t AND a.attnum = ANY (x.indkey) AND a.attname = by
        WHERE x.indrelid = t AND x.indisprimary;
    IF NOT FOUND THEN RAISE 'cannot create constraint on %', t; END IF;
    PERFORM 1 FROM pg_constraint c WHERE c.conrelid = t AND c.contype = 'f' AND NOT EXISTS (
        SELECT 1 FROM citus_stand_in.pg_dist_partition p WHERE p.logicalrelid = c.confrelid AND p.colocationid = together);
    IF FOUND THEN RAISE 'cannot create foreign key constraint since relations are not colocated'; END IF;
    INSERT INTO citus_stand_in.pg_dist_partition VALUES (t, 'h', by, together);
END $$;

CREATE FUNCTION truncate_local_data_after_distributing_table(t regclass) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO citus_stand_in.asked (what) VALUES ('empty ' || t);
    PERFORM 1 FROM citus_stand_in.pg_dist_partition WHERE logicalrelid = t;
    IF NOT FOUND THEN RAISE 'supplied parameter is not a distributed relation'; END IF;
    PERFORM 1 FROM pg_constraint c WHERE c.confrelid = t AND NOT EXISTS (
        SELECT 1 FROM citus_stand_in.pg_dist_partition p WHERE p.logicalrelid = c.conrelid);
    IF FOUND THEN RAISE 'cannot truncate a table referenced in a foreign key constraint by a local table'; END IF;
END $$;
