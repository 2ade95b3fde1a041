"""The process's current run: begun by `ampmon.init` or the first scaler, ended by `ampmon.finish`, exit or the next."""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
import time
from multiprocessing.util import Finalize, register_after_fork

from ampmon import config
from ampmon.client.recorder import Recorder
from ampmon.client.troubles import warn
from ampmon.config import RunOptions
from ampmon.errors import ConfigurationError
from ampmon.system import signals


FINISH_DEADLINE_S = 5.0

_current: Recorder | None = None
_disabled = False
"""Whether the last `ampmon.init` said to record nothing."""
_finished = False
"""Whether a run was ended and none begun since: then only a new scaler, or `init`, begins one."""
_failed = False
"""Whether the last run that was wanted could not be begun: a new scaler tries again, `log` does not."""
_wanted: RunOptions | None = None
"""What `ampmon.init` asked for, where that failed, or a framework, where no run has begun."""
_last_warning = ""
_beginning = False
"""Whether a run is being begun: a signal handler that comes meanwhile begins no other."""
_lock = threading.RLock()
"""Whoever begins or ends a run holds it, so that there is one. A signal handler may interrupt its own thread there."""
_generations = itertools.count()
"""Numbers the runs of this process, so that its ranks agree on each anew."""


def current() -> Recorder | None:
    """The run that this process reports to, if it has begun one."""
    return _current


def begin(options: RunOptions) -> Recorder | None:
    """`start` as a user asks for it: where it fails, as on a full or read-only disk, warn and return None.

    Raises ConfigurationError.
    """
    global _wanted
    try:
        return start(options)
    except ConfigurationError:
        raise
    except Exception as error:
        _wanted = options
        _warn_of(error)
        return None


def start(options: RunOptions) -> Recorder | None:
    """End the current run, if there is one, and begin another. None where monitoring is disabled.

    Raises SpoolError, and ConfigurationError.
    """
    global _beginning, _current, _disabled, _failed, _finished, _wanted
    with _lock:
        if _beginning:  # and this is a signal handler in the midst of it
            return _current
        _beginning = True
        try:
            finish()
            _disabled = options.mode == "disabled"
            if not _disabled:
                _current = Recorder(options, next(_generations))
                _finished = False
            _failed, _wanted = False, None
        finally:
            _beginning = False
        return _current


def propose(options: RunOptions) -> bool:
    """Have the next scaler or `log` begin such a run; False, and nothing done, where there is a run already."""
    global _failed, _finished, _wanted
    with _lock:
        if _current is not None or _beginning:
            return False
        _failed = _finished = False
        _wanted = options
        return True


def ensure(*, anew: bool = True) -> Recorder | None:
    """The current run, begun now with defaults if there is none. None where monitoring is disabled or cannot begin.

    Without ``anew`` a run that was ended is not followed by another. Never raises.
    """
    if _is_settled(anew):
        return _current
    try:
        with _lock:
            if _beginning or _is_settled(anew):
                return _current
            if _wanted is not None:
                return begin(_wanted)
            options = config.resolve()
            return start(options) if options.mode != "disabled" else None
    except Exception as error:
        _warn_of(error)
        return None


def _warn_of(error: Exception) -> None:
    """Warn that nothing is recorded, once for each reason. Raises what a signal handler raised."""
    global _failed, _last_warning
    _failed = True
    signals.let_through(error)
    message = f"ampmon: not recording: {error}"
    if message != _last_warning:
        _last_warning = message
        warn(message)


def _is_settled(anew: bool) -> bool:
    """Whether there is a run, or none is to be begun."""
    return _current is not None or _disabled or (not anew and (_finished or _failed))


def finish(deadline_s: float = FINISH_DEADLINE_S) -> None:
    """Deliver the records and end the run. Blocks for at most ``deadline_s`` seconds; does nothing without a run.

    Runs at exit by itself. Records that are not delivered by then stay on disk, and the sender continues.
    """
    _finish(deadline_s, "finished")


def _finish(deadline_s: float, outcome: str) -> None:
    global _current, _failed, _finished, _wanted
    until = time.monotonic() + deadline_s
    # Who holds it longer begins a run on a disk that hangs, which must not keep the process from its end.
    if not _lock.acquire(timeout=min(max(deadline_s, 0.0), threading.TIMEOUT_MAX)):
        return
    try:
        recorder, _current = _current, None
        _finished = _finished or _failed or recorder is not None
        _failed, _wanted = False, None
    finally:
        _lock.release()
    if recorder is not None:
        recorder.finish(until - time.monotonic(), outcome)


def _at_exit() -> None:
    # The interpreter leaves the exception that ended it here, before the exit handlers run.
    # In an interactive session it is that of some earlier line, which ended nothing.
    fatal = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    _finish(FINISH_DEADLINE_S, type(fatal).__name__ if fatal is not None else "finished")


def _after_fork_in_child() -> None:
    global _beginning, _lock
    _beginning, _lock = False, threading.RLock()  # another thread of the parent's may have held it
    if _current is not None:
        _current.after_fork_in_child()


def _finish_in_worker(_: object) -> None:
    Finalize(None, _at_exit, exitpriority=0)


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
# A child of multiprocessing leaves without running the exit handlers of atexit, and forgets its parent's own of
# multiprocessing after it was forked: then it is given ours. What is registered lives as long as this function.
register_after_fork(_finish_in_worker, _finish_in_worker)
