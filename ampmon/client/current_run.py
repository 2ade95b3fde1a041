"""The process's current run. `ampmon.init` or a scaler begins it; `ampmon.finish`, exit or the next run ends it."""

from __future__ import annotations

import atexit
import builtins
import functools
import itertools
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize, register_after_fork
from typing import Any

from ampmon import config
from ampmon.client.recorder import Recorder
from ampmon.client.troubles import warn
from ampmon.config import RunOptions
from ampmon.system import signals


FINISH_DEADLINE_S = 5.0

_current: Recorder | None = None
_disabled = False
"""Whether the last `ampmon.init` had the mode ``disabled``."""
_over = False
"""Whether the last run has ended or could not begin. Then only a new scaler or `init` begins one; `log` does not."""
_wanted: RunOptions | None = None
"""Options of a run that has not begun: from an `ampmon.init` that failed, or from a framework."""
_last_warning = ""
_beginning = False
"""Whether a run is just beginning. A signal handler that interrupts this must not begin another."""
_handled: BaseException | None = None
"""The exception that the parent was handling when it forked this process. It is handled here too, and ends nothing."""
_left: tuple[str, int] | None = None
"""The outcome by the newest call of `sys.exit` in the main thread, and `_updates` then. None until calls are noted."""
_lock = threading.RLock()
"""Held while a run begins or ends, so there is only one. Reentrant, since a signal handler may interrupt the holder."""
_generations = itertools.count()
"""Numbers the runs of this process: the ranks agree on the id of each separately."""


def current() -> Recorder | None:
    """The run that this process reports to, or None."""
    return _current


def begin(options: RunOptions) -> Recorder | None:
    """Begin a run like `start`, but warn and return None if that fails, for example on a full or read-only disk."""
    global _wanted
    try:
        return start(options)
    except Exception as error:
        _wanted = options
        _warn_of(error)
        return None


def start(options: RunOptions) -> Recorder | None:
    """End the current run, if there is one, and begin another. Return None if monitoring is disabled.

    Raises SpoolError.
    """
    global _beginning, _current, _disabled, _over, _wanted
    with _lock:
        _beginning = True
        greeted = _current is not None and _current.greeted
        try:
            finish()
            _disabled = options.mode == "disabled"
            if not _disabled:
                _note_exits()
                _current = Recorder(options, next(_generations))
                _over = False
                if greeted:  # the address that was printed is no longer this training's
                    greet(_current)
            _wanted = None
        finally:
            _beginning = False
        return _current


def propose(options: RunOptions) -> bool:
    """Let the next scaler or `log` begin a run with these options. Return False if there is a run already."""
    global _over, _wanted
    with _lock:
        if _current is not None:
            return False
        _over, _wanted = False, options
        return True


def ensure(*, anew: bool = True) -> Recorder | None:
    """Return the current run. If there is none, begin one, with the options of `_wanted` or with defaults.

    Return None if monitoring is disabled or the run cannot begin. Without ``anew``, do not begin another run after one
    has ended or could not begin. Never raises.
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
    """Warn that nothing is recorded, unless the last warning was the same. Re-raise an error of a signal handler."""
    global _last_warning, _over
    _over = True
    signals.let_through(error)
    message = f"ampmon: not recording: {error}"
    if message != _last_warning:
        _last_warning = message
        warn(message)


def _is_settled(anew: bool) -> bool:
    """Whether there is a run, or none may begin."""
    return _current is not None or _disabled or (not anew and _over)


def greet(run: Recorder) -> None:
    """Print on stderr where to see the run: once, with its first scaler, on rank 0. Warn about misspelt variables."""
    if run.greeted or run.rank != 0:
        return
    run.greeted = True
    for name, nearest in config.unknown_variables():
        run.warn(name, f"ampmon: {name} is not an ampmon variable; did you mean {nearest}?")
    if not run.options.quiet:
        try:
            sys.stderr.write(f"ampmon: {_where(run)}\n")
            sys.stderr.flush()
        except Exception as error:  # there is none, nobody reads it, or it is the script's own
            signals.let_through(error)


def _where(run: Recorder) -> str:
    if run.options.mode == "offline":
        return f"recording this run in {run.options.dir}; send it with `ampmon sync`"
    return f"watching this run: {run.options.url}/#/runs/{run.run_id}"


def finish(deadline_s: float = FINISH_DEADLINE_S) -> None:
    """Deliver the records and end the run. Blocks for at most ``deadline_s`` seconds. Does nothing without a run.

    Also runs automatically at exit. Records that are not delivered in time stay on disk, and the sender continues.
    """
    end("finished", deadline_s)


def end(outcome: str, deadline_s: float = FINISH_DEADLINE_S) -> None:
    """End the run as `finish` does. ``outcome`` is "finished", or the type of the exception that ended it."""
    global _current, _over, _wanted
    until = time.monotonic() + deadline_s
    # If the lock stays held, another thread is beginning a run on a disk that hangs. The process must still exit.
    if not _lock.acquire(timeout=min(max(deadline_s, 0.0), threading.TIMEOUT_MAX)):
        return
    try:
        recorder, _current = _current, None
        _over, _wanted = _over or recorder is not None, None
    finally:
        _lock.release()
    if recorder is not None:
        # Without the lock, which another thread may need to begin the next run.
        recorder.finish(until - time.monotonic(), outcome)


def _note_exits() -> None:
    """Note what `sys.exit` and `exit` are called for. Handlers of atexit see neither a SystemExit nor the exit code."""
    global _left
    if _left is None:
        sys.exit = _noting(sys.exit)
        kind: Any = type(getattr(builtins, "exit", None))
        if kind.__module__ == "_sitebuiltins":
            kind.__call__ = _noting(kind.__call__)
    _left = "finished", 0


def _noting(leave: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(leave)
    def call(*args: Any, **kwargs: Any) -> Any:
        global _left
        try:
            return leave(*args, **kwargs)
        except SystemExit as error:
            if threading.current_thread() is threading.main_thread():
                _left = _outcome(error), _updates()
            raise

    return call


def _at_exit() -> None:
    # In an interactive session, `sys.last_value` is the exception of an earlier line, which ended nothing.
    if hasattr(sys, "ps1"):
        return finish()
    # Before the exit handlers run, the interpreter stores the exception there. Before Python 3.13, those of a
    # multiprocessing child run while it is still handled.
    fatal = getattr(sys, "last_value", None) or sys.exc_info()[1]
    outcome, updates = _left or ("finished", 0)
    if fatal is not None and fatal is not _handled:
        outcome = _outcome(fatal)
    elif updates != _updates():  # the script caught the SystemExit and trained on
        outcome = "finished"
    end(outcome)


def _updates() -> int:
    """The number of updates of the current run, also of those whose values are still on a device."""
    run = _current
    return sum(stream.ordinal for stream in list(run.streams.values())) if run is not None else 0


def _outcome(fatal: BaseException) -> str:
    """How a process ends that this exception ends. torch and Hydra turn one of a training into `sys.exit(1)`."""
    if isinstance(fatal, SystemExit):
        # A code may be any object. Asking a tensor of two elements whether it is true would raise.
        code = fatal.code if isinstance(fatal.code, int) else int(fatal.code is not None)
        if not code:
            return "finished"
        cause = fatal.__context__
        return type(cause).__name__ if cause not in (None, _handled) else f"SystemExit({code:d})"
    return type(fatal).__name__


def _after_fork_in_child() -> None:
    global _beginning, _left, _lock
    _beginning, _lock = False, threading.RLock()  # another thread of the parent may have held it
    _left = _left and ("finished", 0)
    if _current is not None:
        _current.after_fork_in_child()


def _finish_in_worker(_: object) -> None:
    global _handled
    _handled = sys.exc_info()[1]
    # At exit, only finalizers with a priority run.
    Finalize(None, _at_exit, exitpriority=0)
    traceback.print_exc = _noting_printed(traceback.print_exc)


def _noting_printed(print_exc: Callable[..., None]) -> Callable[..., None]:
    """Note the exception that ends a multiprocessing child, which prints it. The exit handlers of 3.13 run later."""

    @functools.wraps(print_exc)
    def call(*args: Any, **kwargs: Any) -> None:
        if sys._getframe(1).f_code is BaseProcess._bootstrap.__code__:  # type: ignore[attr-defined]
            sys.last_value = sys.exc_info()[1]
        print_exc(*args, **kwargs)

    return call


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
# A multiprocessing child exits without running the handlers of atexit. A forked one also drops the exit handlers of
# multiprocessing that its parent registered. So each child registers its own. The registration lives as long as the
# function passed first.
register_after_fork(_finish_in_worker, _finish_in_worker)
if multiprocessing.parent_process() is not None:  # a child that imports this first
    _finish_in_worker(None)
