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
from sqlalchemy import Connection, Dialect, MetaData, Table, inspect
from sqlalchemy.schema import CreateIndex

from ampmon_server.store.schema.tables import metadata


VERSION_TABLE = "alembic_version"
"""The table in which a database stores its revision."""

VERSIONS = (Path(__file__).parent / "versions",)
"""The folders that contain the revisions."""

_Parts: TypeAlias = Mapping[str, Any]
"""The columns, indexes and keys of a table, each with the properties that must match."""

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
    stored = MetaData()
    stored.reflect(connection, only=lambda name, _: name in metadata.tables, resolve_fks=False)
    found = []
    for table in metadata.sorted_tables:
        if table.name in stored.tables:
            has = _parts(stored.tables[table.name], connection.dialect)
            found += _compared(table, has, _parts(table, connection.dialect))
        else:
            found.append(f"table {table.name} is missing")
    return found


def _parts(table: Table, dialect: Dialect) -> _Parts:
    return {
        **{
            f"column {each.name}": (each.type.compile(dialect=dialect), each.nullable)
            for each in table.columns
        },
        **{
            f"index {each.name}": (each.columns.keys(), bool(each.unique)) for each in table.indexes
        },
        "the primary key": table.primary_key.columns.keys(),
        "a foreign key": sorted(
            (each.parent.name, each.target_fullname) for each in table.foreign_keys
        ),
    }


def _compared(table: Table, has: _Parts, wanted: _Parts) -> list[str]:
    beside = [name for name in has if name not in wanted and name.startswith("column ")]
    return [
        *(_missing(name, table) for name in wanted if name not in has),
        *(
            f"{name} of {table.name} differs"
            for name in wanted
            if name in has and has[name] != wanted[name]
        ),
        *(f"{name} of {table.name} does not belong to this version" for name in beside),
    ]


def _missing(part: str, table: Table) -> str:
    return f"{part} of {table.name} is missing"


def command_for(connection: Connection, difference: str) -> str | None:
    """The statement that creates a missing index; None for any other difference."""
    for table in metadata.sorted_tables:
        for index in table.indexes:
            if difference == _missing(f"index {index.name}", table):
                return " ".join(str(CreateIndex(index).compile(dialect=connection.dialect)).split())
    return None
