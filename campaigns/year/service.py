"""`ampmon`, whose processes go by a `Clock` in place of the machine's: nothing else of them is different.

What an instant is for is in no setting of the server: tokens, silence and retention all ask `time`, and here that is
the year's. Timeouts and pauses go by the monotonic clock, which stays as it is.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from campaigns.year.clock import Clock


CLOCK = "BENCHMARK_CLOCK"
"""The environment variable that says where the clock is."""


def main() -> int:
    clock = Clock(Path(os.environ[CLOCK]))
    time.time, time.time_ns = clock.time, clock.time_ns
    # Only now, for some keep the functions that they find.
    from ampmon_server.cli import main as ampmon

    return ampmon()


if __name__ == "__main__":
    sys.exit(main())
