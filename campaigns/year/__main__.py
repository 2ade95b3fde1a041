"""`make year`: put a generated year of a team's runs through real ingest; write the result of a whole one.

Progress is kept in a folder, so an interrupted year continues where it stopped.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time

from ampmon_server.cli.progress import progress
from benchmarks.store.real import real
from benchmarks.store.samples import Real
from campaigns.progress import kept
from campaigns.year.account import Account
from campaigns.year.campaign import Campaign
from campaigns.year.report import write


LOOK_S, REAL_SAMPLES = 20.0, 8
"""How long pages are requested at each measurement, and the number of gradients that are varied."""

_LINE_S = 15.0
"""How often progress is printed if stderr is not a terminal."""


def main() -> int:
    """Return the exit code: 0 if all that was sent is held or was thinned, and the totals are exact."""
    arguments = _arguments()
    folder = arguments.folder / f"{arguments.scale:g}-{arguments.seed}"
    campaign = Campaign(folder, arguments.scale, arguments.seed, LOOK_S)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    samples = real(REAL_SAMPLES)
    try:
        found = _shown(campaign, samples)
    except KeyboardInterrupt:
        print(f"\nInterrupted: the same command goes on from here ({folder}).", file=sys.stderr)
        return 130
    print(write(campaign))
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
    kept(parser, "year")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
