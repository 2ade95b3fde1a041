"""``ampmon db prune``: shows what of old runs can be removed. With --yes, removes it and returns the space."""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Iterator

from rich.progress import Progress, TaskID

from ampmon_server.cli import CANNOT
from ampmon_server.cli.database import settings_of
from ampmon_server.cli.progress import progress
from ampmon_server.store import Failures, Keep, PruneSize, PruneTask, Pruning, StoreError


REST = 1.0
"""Pause between transactions, in multiples of the last one's duration, so that servers can write."""

GIVEN_BACK_AFTER = 5_000
"""Parts to remove before free space is returned. SQLite searches all free pages for each page it cuts off."""


def prune(arguments: argparse.Namespace) -> int:
    """Prune, or only show what could go. Return 0, or 2 with a line for each reason if something cannot be pruned.

    A run that cannot be read does not stop the others, and is named at the end.
    """
    keep = Keep(arguments.keep_rows_days, arguments.keep_samples_days)
    failures = Failures(
        lambda one, error: print(f"not pruned: run {one.run_id}: {error}", file=sys.stderr)
    )
    refusals = []
    try:
        with Pruning.begin(settings_of(arguments)) as pruning:
            sizes = _shown(pruning, pruning.due(keep), failures)
            if arguments.yes:
                rest = 0.0 if arguments.at_once else REST
                before = pruning.used()
                _prune_runs(pruning, sizes, rest, failures)
                _give_back(pruning, rest, before)
            else:
                more = "Nothing was removed yet: pass --yes to remove it"
                print(more if sizes else "There is nothing to prune.")
    except StoreError as problem:
        refusals.append(str(problem))
    if failures.runs:
        named = ", ".join(str(one.run_id) for one in failures.runs)
        refusals.append(f"these runs are not pruned: {named}")
    for why in refusals:
        print(f"ampmon db prune: {why}", file=sys.stderr)
    return CANNOT if refusals else 0


def _shown(
    pruning: Pruning, due: list[PruneTask], failures: Failures
) -> dict[PruneTask, PruneSize]:
    """Print a line for each run that has something to prune, and a total. Return the size of each."""
    sizes: dict[PruneTask, PruneSize] = {}
    with progress() as bar:
        for one in bar.track(due, description="counting"):
            with failures.of(one):
                if pruning.left(one):
                    sizes[one] = size = pruning.size(one)
                    print(f"run {one.run_id} {one.name or '(deleted)'}: {_words(size)}", flush=True)
    together = PruneSize.total(sizes.values())
    print(f"{len(sizes)} runs in {pruning.database}: {_words(together)}")
    return sizes


def _words(size: PruneSize) -> str:
    return (
        f"{size.rows:,} rows, {size.samples:,} sampled updates of {size.block_bytes / 1e6:,.1f} MB"
    )


def _prune_runs(
    pruning: Pruning, sizes: dict[PruneTask, PruneSize], rest: float, failures: Failures
) -> None:
    """Prune the runs. An SQLite file is also cut at its end now and then, not only after all is removed."""
    began = time.monotonic()
    removed = cut_at = 0
    with progress() as bar:
        task = bar.add_task("pruning", total=sum(size.parts for size in sizes.values()))
        space = bar.add_task("giving space back", total=None, visible=pruning.is_sqlite)
        for one in sizes:
            with failures.of(one):
                finding = pruning.unsound(one.run_id)
                if finding is not None:
                    print(f"not pruned: {finding}", file=sys.stderr)
                    continue
                for parts in _gently(pruning.prune(one), rest, bar, task):
                    removed += parts
                    if removed - cut_at >= GIVEN_BACK_AFTER:
                        deque(_gently(pruning.give_back(), rest, bar, space), 0)
                        cut_at = removed
    if sizes:
        print(f"removed {removed:,} pages, blocks and rows in {time.monotonic() - began:.1f} s")


def _gently(steps: Iterator[int], rest: float, bar: Progress, task: TaskID) -> Iterator[int]:
    began = time.monotonic()
    for removed in steps:
        bar.advance(task, removed)
        time.sleep(rest * (time.monotonic() - began))
        yield removed
        began = time.monotonic()


def _give_back(pruning: Pruning, rest: float, before: int) -> None:
    """Return space and print the size before and after."""
    with progress() as bar:
        task = bar.add_task("giving space back", total=None)
        deque(_gently(pruning.give_back(), rest, bar, task), 0)
    after = pruning.used()
    print(f"{before / 1e6:,.1f} MB before, {after / 1e6:,.1f} MB now")
    if not pruning.is_sqlite:
        print(
            "The tables keep the space for later data. VACUUM FULL frees it on disk, but blocks all writes meanwhile"
        )
