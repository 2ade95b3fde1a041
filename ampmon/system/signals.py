"""Separates an error of the code at hand from what a signal handler of the user's raised in the midst of it.

What is said never to raise raises no error of its own; what a handler raises goes on to whoever trains.
"""

from __future__ import annotations

import functools
import inspect
import signal
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any


def let_through(error: Exception) -> None:
    """Raise an error again that a signal handler raised, as for a preemption or a time limit: it is for who trains.

    For where an error is about to be dropped.
    """
    if is_of_handler(error):
        raise error


def is_of_handler(error: Exception) -> bool:
    """Whether a signal handler raised it. Looks through the frames that it came by."""
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()}
    passed = error.__traceback__
    while passed is not None:
        frame = passed.tb_frame
        if frame.f_code in handlers or _called_by_signal(frame):
            return True
        passed = passed.tb_next
    return False


def _code(handler: Any) -> CodeType | None:
    """What runs where this is called, if that is Python; None for no handler."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not callable(handler):
        return None
    if not hasattr(handler, "__code__"):
        handler = type(handler).__call__
    code: CodeType | None = getattr(handler, "__code__", None)
    return code


def _called_by_signal(frame: FrameType) -> bool:
    """Whether a function was given a number and its own caller's frame: a handler, though another is in its place."""
    code = frame.f_code
    given = [frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount]]
    if code.co_flags & inspect.CO_VARARGS:
        rest = code.co_varnames[code.co_argcount + code.co_kwonlyargcount]
        given += frame.f_locals.get(rest) or ()
    return any(
        isinstance(number, int) and caller is not None and caller is frame.f_back
        for number, caller in pairwise(given)
    )
