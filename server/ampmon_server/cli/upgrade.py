"""``ampmon db upgrade``: brings a database to this version while no server uses it."""

from __future__ import annotations

import sys

from ampmon_server.cli.db import CANNOT
from ampmon_server.settings import Settings
from ampmon_server.store import Busy, Unusable, Upgrade


def run(settings: Settings) -> int:
    """Upgrade, or say in one line why not."""
    try:
        with Upgrade.begin(settings) as upgrade:
            print(f"{upgrade.database}: {_schema(upgrade)}")
    except (Busy, Unusable) as problem:
        print(f"ampmon db upgrade: {problem}", file=sys.stderr)
        return CANNOT
    return 0


def _schema(upgrade: Upgrade) -> str:
    if upgrade.before == upgrade.after:
        return f"its schema is this version's ({upgrade.after})"
    return f"its schema is now {upgrade.after} ({upgrade.before or 'it was empty'} before)"
