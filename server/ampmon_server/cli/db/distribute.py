"""``ampmon db distribute``: spreads runs over the nodes of a Citus cluster, or prints the SQL for it."""

from __future__ import annotations

import argparse
import sys

from ampmon_server.cli.db import settings_of
from ampmon_server.cli.exits import CANNOT
from ampmon_server.cli.progress import progress
from ampmon_server.store import Busy, Distribution, Unusable


def run(arguments: argparse.Namespace) -> int:
    """Distribute the tables, or show how. Return 0, or 2 with a line that says why it is not possible."""
    try:
        with Distribution.begin(settings_of(arguments)) as distribution:
            if arguments.dry_run:
                _show(distribution)
            else:
                _distribute(distribution)
    except (Busy, Unusable) as problem:
        print(f"ampmon db distribute: {problem}", file=sys.stderr)
        return CANNOT
    return 0


def _show(distribution: Distribution) -> None:
    """Print the statements on stdout for psql, in the one transaction that `run` would use."""
    for statement in ("BEGIN", *(step.statement for step in distribution.steps), "COMMIT"):
        print(f"{statement};")
    left = len({step.table for step in distribution.steps})
    print(f"{distribution.database}: {left} tables are to be distributed", file=sys.stderr)


def _distribute(distribution: Distribution) -> None:
    done = set()
    with progress() as bar:
        task = bar.add_task("distributing", total=len(distribution.steps))
        for step in distribution.run():
            done.add(step.table)
            bar.update(task, advance=1, description=step.table)
    over = f"by run over {', '.join(distribution.nodes)}"
    before = (
        f"{distribution.tables - len(done)} of them were distributed already"
        if done
        else "all of them were distributed already"
    )
    print(f"{distribution.database}: {distribution.tables} tables are distributed {over}; {before}")
