"""`ampmon` with a `Clock` instead of the machine's clock. Nothing else differs.

The server has no setting for the time. Tokens, silence and retention all call `time`, which here returns the year's.
Timeouts and pauses use the monotonic clock, which is unchanged.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from campaigns.year.clock import Clock


CLOCK = "BENCHMARK_CLOCK"
"""The environment variable with the path of the clock."""


def main() -> int:
    clock = Clock(Path(os.environ[CLOCK]))
    time.time, time.time_ns = clock.time, clock.time_ns
    # Import late: some modules keep the functions they find.
    from ampmon_server.cli import main as ampmon

    return ampmon()


if __name__ == "__main__":
    sys.exit(main())
