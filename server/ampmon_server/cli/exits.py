"""How commands end: the exit code where they cannot do what they are asked, why in words, and what was written."""

from __future__ import annotations

from pathlib import Path


CANNOT = 2
"""A line on stderr says why. It is argparse's own code too."""


def reason(error: Exception) -> str:
    """Why a command failed: "train.log: No such file or directory" for what the system says of a file."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def size_of(file: Path) -> str:
    """How large a file is: "14 kB", "4.1 MB"."""
    size = file.stat().st_size
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
