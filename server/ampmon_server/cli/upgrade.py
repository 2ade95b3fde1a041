"""``ampmon db upgrade``: brings a database to this version while no server uses it, and shows how far it is."""

from __future__ import annotations

import sys
from uuid import UUID

from ampmon_server.cli.db import CANNOT
from ampmon_server.cli.progress import progress
from ampmon_server.settings import Settings
from ampmon_server.store import Busy, Unusable, Upgrade


def run(settings: Settings) -> int:
    """Upgrade, and say in one line why not where it cannot be; 1 where some run cannot be read.

    What is done stays done: after an interrupt the rest is for the next time.
    """
    try:
        with Upgrade.begin(settings) as upgrade:
            print(f"{upgrade.database}: {_schema(upgrade)}")
            failed = _roll_up(upgrade)
    except (Busy, Unusable) as problem:
        print(f"ampmon db upgrade: {problem}", file=sys.stderr)
        return CANNOT
    for run_id in failed:
        print(f"run {UUID(bytes=run_id)} cannot be read: see ampmon db verify", file=sys.stderr)
    return int(bool(failed))


def _schema(upgrade: Upgrade) -> str:
    if upgrade.before == upgrade.after:
        return f"its schema is this version's ({upgrade.after})"
    return f"its schema is now {upgrade.after} ({upgrade.before or 'it was empty'} before)"


def _roll_up(upgrade: Upgrade) -> list[bytes]:
    """Roll up the runs that are not; those that cannot be."""
    waiting = upgrade.waiting()
    with progress() as bar:
        tracked = bar.track(waiting, description="rolling up runs")
        failed = [run_id for run_id in tracked if not upgrade.roll_up(run_id)]
    if waiting:
        print(f"{len(waiting) - len(failed)} of {len(waiting)} runs are rolled up")
    return failed
