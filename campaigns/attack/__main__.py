"""`make attack`: attack real servers from outside, and print how many attacks of each kind got through.

`make attack ARGS="--only linked"` runs one part, `ARGS="--every 10"` a tenth of each.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from campaigns.attack.parts import PARTS
from campaigns.attack.tally import Tally


def main() -> int:
    """Return the exit code: 0 if nothing got through."""
    arguments = _arguments()
    tally = Tally()
    for name in arguments.only or PARTS:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            PARTS[name](tally, Path(folder) / name, arguments.every)
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print(*tally.lines(), sep="\n")
    return 0 if tally.held else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m campaigns.attack", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=PARTS, help="a part; may be given again (all)"
    )
    parser.add_argument(
        "--every", type=int, default=1, help="try each so manieth attack of a kind (%(default)s)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
