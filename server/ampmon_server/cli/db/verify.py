"""``ampmon db verify``: prints the defects of a database, one a line. With --repair, rebuilds what is derived."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from uuid import UUID

from ampmon_server.cli.db import settings_of
from ampmon_server.cli.exits import CANNOT
from ampmon_server.cli.progress import progress
from ampmon_server.store import Busy, Defect, NotFound, Unusable, Verification


FOUND = 1


def run(arguments: argparse.Namespace) -> int:
    """Verify the database. Return 0, 1 if there are defects, or 2 if the database cannot be read."""
    found = 0
    try:
        with Verification.begin(settings_of(arguments), repair=arguments.repair) as verification:
            for finding in _findings(verification, arguments.run, repair=arguments.repair):
                print(finding, flush=True)
                found += 1
            print(f"{verification.database}: {found or 'nothing'} found", file=sys.stderr)
    except (Busy, NotFound, Unusable) as problem:
        print(f"ampmon db verify: {problem}", file=sys.stderr)
        return CANNOT
    return FOUND if found else 0


def _findings(verification: Verification, only: UUID | None, *, repair: bool) -> Iterator[Defect]:
    """Yield the defects. With ``repair``, yield only those left after the repair."""
    with progress() as bar:
        task = bar.add_task("verifying", total=None)
        broken = verification.broken()
        yield from broken
        if broken:
            return
        if only is None:
            found = verification.strays()
            if found and repair:
                verification.sweep()
                found = verification.strays()
            yield from found
        wanted = verification.runs(only)
        bar.update(task, total=len(wanted))
        for run_id in wanted:
            found = verification.run(run_id)
            if found and repair:
                verification.repair(run_id)
                found = verification.run(run_id)
            yield from found
            bar.advance(task)
