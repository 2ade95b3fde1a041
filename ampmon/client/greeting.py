"""Prints the one line of a run that goes well: where to see it."""

from __future__ import annotations

import contextlib
import sys

from ampmon import config
from ampmon.client.recorder import Recorder


def greet(run: Recorder) -> None:
    """Print on stderr where to see the run: once, with its first scaler, on rank 0. Warn about misspelt variables."""
    if run.greeted or run.rank != 0:
        return
    run.greeted = True
    for name, nearest in config.unknown_variables():
        run.warn(name, f"ampmon: {name} is not an ampmon variable; did you mean {nearest}?")
    if not run.options.quiet and sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # stderr is closed, or its reader is gone
            sys.stderr.write(f"ampmon: {_where(run)}\n")
            sys.stderr.flush()


def _where(run: Recorder) -> str:
    if run.options.mode == "offline":
        return f"recording this run in {run.options.dir}; send it with `ampmon sync`"
    return f"watching this run: {run.options.url}/#/runs/{run.run_id}"
