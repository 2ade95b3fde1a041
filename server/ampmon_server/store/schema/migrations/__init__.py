"""Finds the schema version of a database, compares its schema with `schema.tables`, and upgrades it to the newest."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Dialect, Table, inspect
from sqlalchemy.schema import CreateIndex

from ampmon_server.store.schema.tables import metadata


VERSION_TABLE = "alembic_version"
"""The table in which a database stores its revision."""

VERSIONS = (Path(__file__).parent / "versions",)
"""The folders that contain the revisions."""

_Part: TypeAlias = Mapping[str, tuple[Any, ...]]
"""The columns or indexes of a table by name, each with the properties that must match."""

Age = Literal["empty", "earlier", "older", "current", "newer", "foreign", "unversioned"]


@dataclass(frozen=True, slots=True)
class Schema:
    """How a database's schema compares with this version. ``revision`` is what the database states; None if nothing.

    empty: it has none of our tables. earlier: its number is below the first revision's, so an earlier commit made it.
    foreign: another program stores its revision there. unversioned: it has our tables without a revision, or several
    revisions, so its history is unknown.
    """

    age: Age
    revision: str | None


def schema(connection: Connection) -> Schema:
    """Determine the age of a database's schema. Reads only."""
    heads = MigrationContext.configure(connection).get_current_heads()
    if len(heads) > 1:
        return Schema("unversioned", ", ".join(heads))
    if not heads:
        ours = set(metadata.tables) & set(inspect(connection).get_table_names())
        return Schema("unversioned" if ours else "empty", None)
    (revision,) = heads
    known = _revisions(VERSIONS)
    if revision in known:
        return Schema("current" if revision == known[0] else "older", revision)
    if not re.fullmatch(r"\d{4}", revision):
        return Schema("foreign", revision)
    return Schema("earlier" if revision < known[-1] else "newer", revision)


# The argument is a key of the cache: the tests add revisions.
@cache
def _revisions(_: tuple[Path, ...]) -> list[str]:
    """All revisions, newest first."""
    scripts = ScriptDirectory.from_config(config())
    return [script.revision for script in scripts.walk_revisions()]


def upgrade(connection: Connection) -> None:
    """Upgrade an empty or older schema to the newest, in the connection's transaction: all or nothing."""
    command.upgrade(config(connection), "head")


def config(connection: Connection | None = None) -> Config:
    """Return an Alembic configuration that runs commands on a connection."""
    made = Config()
    # Escape percent signs, which would be read as interpolation.
    made.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    made.set_main_option(
        "version_locations", os.pathsep.join(map(str, VERSIONS)).replace("%", "%%")
    )
    made.set_main_option("path_separator", "os")
    made.attributes["connection"] = connection
    return made


# -- comparison --------------------------------------------------------------------------------------------------------


def differences(connection: Connection) -> list[str]:
    """Describe what our tables lack and what differs; empty for a sound schema.

    Other tables and indexes are ignored, because an administrator may have made them.
    """
    inspector = inspect(connection)
    columns = inspector.get_multi_columns()
    keys = inspector.get_multi_pk_constraint()
    foreign = inspector.get_multi_foreign_keys()
    indexes = inspector.get_multi_indexes()
    found = []
    for table in metadata.sorted_tables:
        place = (None, table.name)
        if place not in columns:
            found.append(f"table {table.name} is missing")
            continue
        kind = connection.dialect
        has = _columns(columns[place], kind)
        found += _compared(table, "column", has, _columns(_declared(table), kind))
        found += _compared(table, "index", _indexes(indexes[place]), _wanted_indexes(table))
        of_key = tuple(keys[place]["constrained_columns"])
        if of_key != tuple(column.name for column in table.primary_key):
            found.append(f"the primary key of {table.name} differs")
        if sorted(map(_foreign, foreign[place])) != sorted(_wanted_foreign(table)):
            found.append(f"the foreign keys of {table.name} differ")
    return found


def _compared(table: Table, what: str, has: _Part, wanted: _Part) -> list[str]:
    of = f"of {table.name}"
    missing = [_missing(what, name, table) for name in wanted if name not in has]
    other = [
        f"{what} {name} {of} differs"
        for name in wanted
        if has.get(name, wanted[name]) != wanted[name]
    ]
    beside = [
        f"{what} {name} {of} does not belong to this version" for name in has if name not in wanted
    ]
    return missing + other + (beside if what == "column" else [])


def _missing(what: str, name: str, table: Table) -> str:
    return f"{what} {name} of {table.name} is missing"


def _declared(table: Table) -> list[dict[str, Any]]:
    return [
        {"name": column.name, "type": column.type, "nullable": column.nullable}
        for column in table.columns
    ]


def _columns(listed: Any, dialect: Dialect) -> _Part:
    return {
        each["name"]: (each["type"].compile(dialect=dialect), bool(each["nullable"]))
        for each in listed
    }


def _indexes(listed: Any) -> _Part:
    return {each["name"]: (tuple(each["column_names"]), bool(each["unique"])) for each in listed}


def _wanted_indexes(table: Table) -> _Part:
    return {
        str(index.name): (tuple(column.name for column in index.columns), bool(index.unique))
        for index in table.indexes
    }


def _foreign(listed: Any) -> tuple[Any, ...]:
    return tuple(listed["constrained_columns"]), listed["referred_table"]


def _wanted_foreign(table: Table) -> list[tuple[Any, ...]]:
    return [
        (tuple(constraint.column_keys), constraint.referred_table.name)
        for constraint in table.foreign_key_constraints
    ]


def command_for(connection: Connection, difference: str) -> str | None:
    """The statement that creates a missing index; None for any other difference."""
    for table in metadata.sorted_tables:
        for index in table.indexes:
            if difference == _missing("index", str(index.name), table):
                return " ".join(str(CreateIndex(index).compile(dialect=connection.dialect)).split())
    return None
