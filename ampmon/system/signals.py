"""Tells errors of our own code from exceptions that the user's signal handlers raise while it runs.

Code that never raises drops its own errors, but passes a handler's exception on to the training script.
"""

from __future__ import annotations

import functools
import inspect
import signal
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any


def let_through(error: Exception) -> None:
    """Raise ``error`` again if a signal handler raised it, as for a preemption. Call this before you drop an error."""
    if is_of_handler(error):
        raise error


def is_of_handler(error: Exception) -> bool:
    """Whether a signal handler raised it, by the frames of its traceback."""
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()}
    passed = error.__traceback__
    while passed is not None:
        frame = passed.tb_frame
        if frame.f_code in handlers or _called_by_signal(frame):
            return True
        passed = passed.tb_next
    return False


def _code(handler: Any) -> CodeType | None:
    """The Python code that runs when a handler is called; None if there is none."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not callable(handler):
        return None
    if not hasattr(handler, "__code__"):
        handler = type(handler).__call__
    code: CodeType | None = getattr(handler, "__code__", None)
    return code


def _called_by_signal(frame: FrameType) -> bool:
    """Whether a function was given a number and its caller's frame: a handler, even if another has replaced it."""
    code = frame.f_code
    given = [frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount]]
    if code.co_flags & inspect.CO_VARARGS:
        rest = code.co_varnames[code.co_argcount + code.co_kwonlyargcount]
        given += frame.f_locals.get(rest) or ()
    return any(
        isinstance(number, int) and caller is not None and caller is frame.f_back
        for number, caller in pairwise(given)
    )
