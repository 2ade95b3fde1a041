"""The command line. `ampmon run` replaces itself with another program, so it loads nothing of the other commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


CANNOT = 2
"""Exit code if a command cannot do its work. A line on stderr says why. argparse uses the same code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    _replace_closed_streams()
    try:
        if words[:1] == ["run"]:
            from ampmon_server.cli import launch

            return launch.main(words[1:], _start_server)
        from ampmon_server.cli import commands

        return commands.main(words)
    except KeyboardInterrupt:  # also while modules are loaded
        return 130


def _replace_closed_streams() -> None:
    """Let commands read nothing from a closed stdin, and print to nobody. Python gives None for a closed stream."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - as long as the process


def _start_server() -> None:
    from ampmon_server.cli import background

    background.start()
