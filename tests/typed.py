"""`ampmon` commands in this process. Their output is not a terminal."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import NamedTuple

from ampmon_server.cli import main


class Done(NamedTuple):
    """The exit code of a command, and what it printed."""

    code: int
    out: str
    err: str


def typed(*words: str | Path) -> Done:
    """Run `ampmon WORDS`."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([*map(str, words)])
    return Done(code, out.getvalue(), err.getvalue())
