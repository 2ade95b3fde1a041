"""`make busy`: run the suite five times while eight busy loops compete with it, and list failures by test.

`make busy ARGS="--loops 0 --rounds 1"` measures what the suite costs on a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from pathlib import Path

from campaigns.busy.rounds import Round, busy_loops, failures, line, run


def main() -> int:
    """Return the exit code: 0 if every round passed."""
    arguments = _arguments()
    os.environ.pop("MAKEFLAGS", None)  # not meant for the `make test` it starts
    rounds: list[Round] = []
    with busy_loops(arguments.loops), tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        suite = f"--junitxml={shlex.quote(str(report))} {arguments.pytest}"
        for number in range(1, arguments.rounds + 1):
            rounds.append(run(["make", "test", f"ARGS={suite}"], report))
            print(line(number, rounds[-1]), flush=True)
    print(*failures(rounds), sep="\n")
    return 0 if all(each.passed for each in rounds) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m campaigns.busy", description=__doc__)
    parser.add_argument("--loops", type=int, default=8, help="busy loops (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of the suite (%(default)s)")
    parser.add_argument("--pytest", default="", help="more arguments for pytest")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
