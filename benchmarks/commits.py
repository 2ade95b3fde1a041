"""Names the code that a campaign tests."""

from __future__ import annotations

import subprocess
from pathlib import Path


def product_commit() -> str:
    """The last commit of `ampmon` and `server`, with a plus if they have uncommitted changes. "unknown" without git."""
    product = ("--", ":/ampmon", ":/server")
    try:
        changed = _git("status", "--porcelain", *product)
        return _git("log", "-1", "--format=%h", *product).strip() + "+" * bool(changed)
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(*arguments: str) -> str:
    here = Path(__file__).parent
    command = ["git", *arguments]
    return subprocess.run(command, cwd=here, check=True, capture_output=True, text=True).stdout
