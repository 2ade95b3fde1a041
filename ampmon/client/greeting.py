"""The one line that a run prints where all goes well: where it is seen."""

from __future__ import annotations

import contextlib
import sys

from ampmon import config
from ampmon.client.recorder import Recorder


def greet(run: Recorder) -> None:
    """Say on stderr where the run is seen, with its first scaler, on rank 0; and warn of variables misspelt."""
    if run.greeted or run.rank != 0:
        return
    run.greeted = True
    for name, nearest in config.unknown_variables():
        run.warn(name, f"ampmon: {name} is no variable of ampmon's: did you mean {nearest}?")
    if not run.options.quiet and sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # it is closed, or nobody reads it
            sys.stderr.write(f"ampmon: {_where(run)}\n")
            sys.stderr.flush()


def _where(run: Recorder) -> str:
    if run.options.mode == "offline":
        return f"recording this run in {run.options.dir}; send it with `ampmon sync`"
    return f"watching this run: {run.options.url}/#/runs/{run.run_id}"
