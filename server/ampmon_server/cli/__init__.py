"""The command line. `ampmon run` replaces itself with another program, so it loads nothing of the other commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence


CANNOT = 2
"""Exit code if a command cannot do its work. A line on stderr says why. argparse uses the same code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] == ["run"]:
        from ampmon import launch

        return launch.main(words[1:], _start_server)
    from ampmon_server.cli import commands

    return commands.main(words)


def _start_server() -> None:
    from ampmon_server.cli import background

    background.start()
