"""`python -m campaigns.faults`: run the matrix and print what is wrong; with --all, also write the result."""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
import time
from pathlib import Path

from benchmarks import commits
from campaigns.faults import seams


MOST = 1
STATE = Path(f"build/faults-{commits.newest(*commits.PRODUCT)}.jsonl")
"""The finished cells. Those of another commit do not count."""


def main() -> int:
    """Return 0 if nothing is wrong, else 1."""
    options = _options()
    # Before torch and ampmon load: use one thread, ignore settings from outside, and replace calls before anyone
    # keeps an original.
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    for name in [name for name in os.environ if name.startswith("AMPMON_")]:
        del os.environ[name]
    seams.install()
    from campaigns.faults import matrix, report, runner

    lines = [*matrix.short(), *matrix.PLANTED] if options.json else [*matrix.lines()]
    lines = [each for each in lines if any(fnmatch.fnmatch(each.name, o) for o in options.only)]
    done = report.done(STATE) if options.all else {}
    most = None if options.all else options.most
    wrong, began = 0, time.monotonic()
    cells = runner.run(lines, most=most, jobs=options.jobs, done=done, call=options.call)
    for count, cell in enumerate(cells):
        wrong += bool(cell["wrong"])
        if options.json:
            print(json.dumps(cell), flush=True)
            continue
        if options.all and "number" in cell:
            report.keep(STATE, cell)
        if cell["wrong"]:
            print(f"\r{cell.get('line')}, call {cell.get('number')}:", *cell["wrong"], sep="\n  ")
        passed = f"{count} cells, {wrong} wrong, {time.monotonic() - began:.0f} s"
        print(f"\r{passed}: {cell.get('line', ''):60}", end="", file=sys.stderr)
    print(file=sys.stderr)
    if options.all:
        report.write(STATE)
    return 1 if wrong else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m campaigns.faults", description=__doc__)
    parser.add_argument("--all", action="store_true", help=f"every call; resumes from {STATE}")
    parser.add_argument("--most", type=int, default=MOST, help="calls of each line, unless --all")
    parser.add_argument("--call", type=int, help="only this call of each line, counted from 1")
    parser.add_argument(
        "--only", nargs="*", default=["*"], help="lines whose name fits, such as 'server/commit/*'"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--json", action="store_true", help="for the test suite: no bar, and bugs are planted"
    )
    options = parser.parse_args()
    if options.call is not None:  # a single call writes no result
        options.all = False
    return options


if __name__ == "__main__":
    sys.exit(main())
