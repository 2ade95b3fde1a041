"""Finds the schema version of a database and upgrades it to the newest, which `schema.tables` declares."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect

from ampmon_server.store.schema.migrations.comparison import command_for, differences
from ampmon_server.store.schema.tables import metadata


__all__ = [
    "VERSION_TABLE",
    "Age",
    "Schema",
    "command_for",
    "config",
    "differences",
    "noted",
    "schema",
    "upgrade",
]

VERSION_TABLE = "alembic_version"
"""The table in which a database stores its revision."""

VERSIONS = (Path(__file__).parent / "versions",)
"""The folders that contain the revisions."""

Age = Literal["empty", "older", "current", "newer", "foreign", "unversioned"]


@dataclass(frozen=True, slots=True)
class Schema:
    """How a database's schema compares with this version. ``revision`` is what the database states; None if nothing.

    empty: it has none of our tables. foreign: another program stores its revision there. unversioned: it has our tables
    without a revision, or several revisions, so its history is unknown.
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
    return noted(revision)


def noted(revision: str) -> Schema:
    """Determine the age of a schema from the revision that its database states."""
    scripts = _scripts(VERSIONS)
    if revision == scripts.get_current_head():
        return Schema("current", revision)
    if any(revision == script.revision for script in scripts.walk_revisions()):
        return Schema("older", revision)
    return Schema("newer" if re.fullmatch(r"\d{4}", revision) else "foreign", revision)


@cache
def _scripts(_: tuple[Path, ...]) -> ScriptDirectory:
    return ScriptDirectory.from_config(config())


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
