"""The schema's history and the way to its newest state; `tables` is the present."""

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
"""Where a database keeps the revision that it has."""

VERSIONS = (Path(__file__).parent / "versions",)
"""The folders in which revisions are."""

Age = Literal["empty", "older", "current", "newer", "foreign", "unversioned"]


@dataclass(frozen=True, slots=True)
class Schema:
    """How a database stands to this version. ``revision`` is what it says of itself; None where it says nothing.

    empty: none of our tables is there; foreign: another program keeps its revision there; unversioned: there are
    tables of ours, or several revisions, and so nothing is known of how it came to be.
    """

    age: Age
    revision: str | None


def schema(connection: Connection) -> Schema:
    """How old the schema is. Reads only."""
    heads = MigrationContext.configure(connection).get_current_heads()
    if len(heads) > 1:
        return Schema("unversioned", ", ".join(heads))
    if not heads:
        ours = set(metadata.tables) & set(inspect(connection).get_table_names())
        return Schema("unversioned" if ours else "empty", None)
    (revision,) = heads
    return noted(revision)


def noted(revision: str) -> Schema:
    """How old a schema is of which this is noted."""
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
    """Bring an empty or older schema to the newest, in the connection's transaction: all of it, or nothing."""
    command.upgrade(config(connection), "head")


def config(connection: Connection | None = None) -> Config:
    """Alembic's configuration, to run its commands on a connection."""
    made = Config()
    # A per cent sign in a path would be taken for interpolation.
    made.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    made.set_main_option(
        "version_locations", os.pathsep.join(map(str, VERSIONS)).replace("%", "%%")
    )
    made.set_main_option("path_separator", "os")
    made.attributes["connection"] = connection
    return made
