"""The process's current run: begun by `ampmon.init` or the first scaler, ended by `ampmon.finish`, exit or the next."""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import warnings

from ampmon import config
from ampmon.config import RunOptions
from ampmon.errors import AmpmonError
from ampmon.recorder import AmpmonWarning, Recorder


FINISH_DEADLINE_S = 5.0

_current: Recorder | None = None
_generations = itertools.count()
"""Numbers the runs of this process, so that its ranks agree on each anew."""


def current() -> Recorder | None:
    """The run that this process reports to, if it has begun one."""
    return _current


def start(options: RunOptions) -> Recorder | None:
    """End the current run, if there is one, and begin another. None where monitoring is disabled."""
    global _current
    finish()
    if options.mode != "disabled":
        _current = Recorder(options, next(_generations))
    return _current


def ensure() -> Recorder | None:
    """The current run, begun now with defaults if there is none. None where monitoring is disabled or cannot begin."""
    if _current is not None:
        return _current
    try:
        return start(config.resolve())
    except AmpmonError as error:
        warnings.warn(f"ampmon: not recording: {error}", AmpmonWarning, stacklevel=3)
        return None


def finish(deadline_s: float = FINISH_DEADLINE_S) -> None:
    """Deliver what is recorded and end the run. Blocks, at most ``deadline_s`` seconds; a no-op where there is no run.

    Called at exit by itself. What is not delivered by then stays on disk, and the sender goes on with it.
    """
    _finish(deadline_s, "finished")


def _finish(deadline_s: float, outcome: str) -> None:
    global _current
    recorder = _current
    if recorder is None:
        return
    _current = None
    recorder.finish(deadline_s, outcome)


def _at_exit() -> None:
    # The interpreter leaves the exception that ended it here, before the exit handlers run.
    fatal = getattr(sys, "last_value", None)
    _finish(FINISH_DEADLINE_S, type(fatal).__name__ if fatal is not None else "finished")


def _after_fork_in_child() -> None:
    if _current is not None:
        _current.after_fork_in_child()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
