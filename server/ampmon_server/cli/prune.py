"""``ampmon db prune``: says what of old runs could go, and with --yes removes it and gives the space back."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

from rich.progress import Progress, TaskID

from ampmon_server.cli.db import CANNOT, settings_of
from ampmon_server.cli.progress import progress
from ampmon_server.store import Busy, Due, Keep, Pruning, Size, Unusable


REST = 1.0
"""Between two transactions it rests so many times as long as one took, for servers to write, unless told otherwise."""


def run(arguments: argparse.Namespace) -> int:
    """Prune: 0 when all is done, or was only to be shown; 2, with one line that says why, where it cannot be."""
    keep = Keep(arguments.keep_rows_days, arguments.keep_samples_days)
    days = [each for each in (keep.rows_days, keep.samples_days) if each is not None]
    if any(each < 0 for each in days):
        return _refused("days are 0 or more")
    try:
        with Pruning.begin(settings_of(arguments), alone=arguments.rewrite) as pruning:
            due = pruning.due(keep)
            found = _shown(pruning, due)
            if not arguments.yes:
                print("Nothing is removed yet: add --yes" if due else "There is nothing to prune.")
                return 0
            rest = 0.0 if arguments.at_once else REST
            _prune(pruning, due, found, rest)
            refusal = _give_back(pruning, rest, rewrite=arguments.rewrite)
    except (Busy, Unusable) as problem:
        return _refused(str(problem))
    return 0 if refusal is None else _refused(f"the file is not rewritten: {refusal}")


def _refused(why: str) -> int:
    print(f"ampmon db prune: {why}", file=sys.stderr)
    return CANNOT


def _shown(pruning: Pruning, due: list[Due]) -> Size:
    """Print a line for each run, and one for all; what all are together."""
    together = Size()
    with progress() as bar:
        for one in bar.track(due, description="counting"):
            size = pruning.size(one)
            together = together.plus(size)
            print(f"run {one.run_id} {one.name or '(deleted)'}: {_words(size)}", flush=True)
    print(f"{len(due)} runs in {pruning.database}: {_words(together)}")
    return together


def _words(size: Size) -> str:
    return (
        f"{size.rows:,} rows, {size.samples:,} sampled updates of {size.block_bytes / 1e6:,.1f} MB"
    )


def _prune(pruning: Pruning, due: list[Due], found: Size, rest: float) -> None:
    began = time.monotonic()
    removed = 0
    with progress() as bar:
        task = bar.add_task("pruning", total=found.rows)
        for one in due:
            finding = pruning.unsound(one)
            if finding is not None:
                print(f"not pruned: {finding}", file=sys.stderr)
                continue
            removed += sum(_gently(pruning.prune(one), rest, bar, task))
    if due:
        print(f"removed {removed:,} rows and blocks in {time.monotonic() - began:.1f} s")


def _gently(steps: Iterator[int], rest: float, bar: Progress, task: TaskID) -> Iterator[int]:
    began = time.monotonic()
    for removed in steps:
        bar.advance(task, removed)
        yield removed
        time.sleep(rest * (time.monotonic() - began))
        began = time.monotonic()


def _give_back(pruning: Pruning, rest: float, *, rewrite: bool) -> str | None:
    """Give space back and say how much; why the file could not be rewritten, if it was to be."""
    before = pruning.used()
    refusal = None
    if rewrite and pruning.is_sqlite:
        refusal = pruning.rewrite()
    with progress() as bar:
        task = bar.add_task("giving space back", total=None)
        for _ in _gently(pruning.give_back(), rest, bar, task):
            pass
    after = pruning.used()
    print(f"{before / 1e6:,.1f} MB before, {after / 1e6:,.1f} MB now")
    if pruning.is_sqlite and not pruning.cuts:
        print(
            "Free pages wait for what comes: to give them to the disk, stop ampmon serve and run "
            "ampmon db prune --yes --rewrite once; after that they go by themselves"
        )
    if not pruning.is_sqlite:
        print(
            "Tables keep the space for what comes. VACUUM FULL gives it to the disk, and nobody can write meanwhile"
        )
    return refusal
