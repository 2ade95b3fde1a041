"""`make year`: put a generated year of a team's runs through real ingest; write the result of a whole one.

Progress is kept in a folder, so an interrupted year continues where it stopped.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from ampmon_server.cli.progress import progress
from benchmarks.store.real import real
from benchmarks.store.samples import Real
from campaigns.year.account import Account
from campaigns.year.campaign import Campaign
from campaigns.year.report import write


_LINE_S = 15.0
"""How often progress is printed if stderr is not a terminal."""


def main() -> int:
    """Return the exit code: 0 if all that was sent is held or was thinned, and the totals are exact."""
    arguments = _arguments()
    folder = arguments.folder / f"{arguments.scale:g}-{arguments.seed}"
    campaign = Campaign(folder, arguments.scale, arguments.seed, arguments.look_s)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    samples = real(arguments.real_samples)
    try:
        found = _shown(campaign, samples)
    except KeyboardInterrupt:
        print(f"\nInterrupted: the same command goes on from here ({folder}).", file=sys.stderr)
        return 130
    print(write(campaign, arguments.result))
    return 1 if found.problems else 0


def _shown(campaign: Campaign, samples: Real) -> Account:
    """Run the campaign and show its progress."""
    began, before, said = time.monotonic(), campaign.state.updates, 0.0
    with progress() as bar:
        task = bar.add_task("updates", total=campaign.total, completed=before)

        def show() -> None:
            nonlocal said
            done, now = campaign.state.updates, time.monotonic()
            bar.update(task, completed=done)
            if bar.live.console.is_terminal is False and now - said > _LINE_S:
                said = now
                rate = (done - before) / (now - began)
                left = (campaign.total - done) / max(rate, 1.0) / 60
                words = (
                    f"{done:,} of {campaign.total:,} updates, {rate:,.0f}/s, {left:.0f} min left"
                )
                print(words, file=sys.stderr, flush=True)

        return campaign.run(samples, show)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m campaigns.year", description=__doc__)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of 20 000 runs and 10^8 updates (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn (%(default)s)")
    parser.add_argument(
        "--look-s",
        type=float,
        default=20.0,
        help="how long pages are asked for at each look (%(default)s)",
    )
    parser.add_argument(
        "--real-samples", type=int, default=8, help="gradients to vary (%(default)s)"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir(), "ampmon-year"),
        help="where it keeps the database and how far it is (%(default)s)",
    )
    parser.add_argument("--result", type=Path, help="name of the result, without a suffix")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
