"""``ampmon db upgrade``: upgrades a database to this version while no server uses it."""

from __future__ import annotations

import sys

from ampmon_server.cli.exits import CANNOT
from ampmon_server.settings import Settings
from ampmon_server.store import Busy, Unusable, upgrade


def run(settings: Settings) -> int:
    """Upgrade the database. Return 0, or 2 with a line that says why it is not possible."""
    try:
        database, before, after = upgrade(settings)
    except (Busy, Unusable) as problem:
        print(f"ampmon db upgrade: {problem}", file=sys.stderr)
        return CANNOT
    if before == after:
        print(f"{database}: the schema is up to date ({after})")
    else:
        print(f"{database}: the schema is upgraded to {after} (before: {before or 'empty'})")
    return 0
