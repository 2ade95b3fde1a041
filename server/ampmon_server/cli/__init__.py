"""The command line. `ampmon run` becomes another program, and loads nothing for the other commands before."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] == ["run"]:
        from ampmon import launch
        from ampmon_server.cli import background

        return launch.main(words[1:], background.start)
    from ampmon_server.cli import commands

    return commands.main(words)
