"""`make soak`: run rounds until each role was killed, and acknowledgements were lost, a thousand times.

Writes the result of a whole soak. Progress is kept in a folder, so an interrupted soak continues where it stopped.
Rounds with a problem stay there too.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time

from campaigns.progress import kept, show
from campaigns.soak.campaign import KILLS, Campaign, Settings
from campaigns.soak.report import line, write


def main() -> int:
    """Return the exit code: 0 if nothing was lost, doubled or otherwise wrong."""
    arguments = _arguments()
    settings = Settings(
        target=arguments.kills,
        seed=arguments.seed,
        at_once=arguments.at_once,
        limit_s=arguments.hours * 3600,
    )
    campaign = Campaign(arguments.folder, settings)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began_s, done_before = time.monotonic(), campaign.total().fewest()
    thread = threading.Thread(target=campaign.run)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.5 if sys.stderr.isatty() else 15.0)
            show(line(campaign, time.monotonic() - began_s, done_before))
    except KeyboardInterrupt:
        campaign.stop()
        thread.join()
        print(f"\nInterrupted: the same command goes on from here ({arguments.folder}).")
        return 130
    show("")
    print(write(campaign))
    return 0 if campaign.complete() and not campaign.wrong() else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m campaigns.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS, help="of each role (%(default)s)")
    parser.add_argument(
        "--seed", type=int, default=1, help="of what is drawn at random (%(default)s)"
    )
    parser.add_argument(
        "--at-once", type=int, default=2, help="rounds beside each other (%(default)s)"
    )
    parser.add_argument("--hours", type=float, default=3.0, help="at most (%(default)s)")
    kept(parser, "soak")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
