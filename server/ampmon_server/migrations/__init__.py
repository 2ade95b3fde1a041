"""The schema's history and the way to its newest state; a revision spells its tables out, `tables` is the present."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import Connection


class UnknownRevision(Exception):
    """The database was made by a newer ampmon."""


def upgrade(connection: Connection) -> None:
    """Bring the database to the newest schema. Raises UnknownRevision for one that this version does not know."""
    config = Config()
    # A per cent sign in a path would be taken for interpolation.
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    scripts = ScriptDirectory.from_config(config)
    current = MigrationContext.configure(connection).get_current_revision()
    if current == scripts.get_current_head():
        return
    if current is not None:
        _check_known(scripts, current)
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _check_known(scripts: ScriptDirectory, revision: str) -> None:
    try:
        scripts.get_revision(revision)
    except CommandError:
        raise UnknownRevision(revision) from None
