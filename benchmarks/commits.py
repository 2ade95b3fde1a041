"""Names the measured or tested code by its commit, without importing it."""

from __future__ import annotations

import subprocess
from pathlib import Path


PRODUCT = (":/ampmon", ":/server")


def newest(*paths: str, digits: str = "auto") -> str:
    """The last commit of these paths, with a plus if files of it were changed since. "unknown" without git."""
    try:
        changed = git("status", "--porcelain", "-uno", "--", *paths)
        found = git("-c", f"core.abbrev={digits}", "log", "-1", "--format=%h", "--", *paths)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found + "+" * bool(changed)


def git(*arguments: str) -> str:
    """Return what git prints in this folder. Raises SubprocessError if it fails."""
    here = Path(__file__).parent
    return subprocess.check_output(
        ["git", *arguments], cwd=here, stderr=subprocess.DEVNULL, text=True
    ).strip()
