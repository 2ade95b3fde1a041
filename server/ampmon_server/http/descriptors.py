"""How many files and connections this process may have open at once."""

from __future__ import annotations

import sys


LIMIT_MAX = 65_536
"""Systems without a limit of their own get this one."""
RESERVED = 128
"""Descriptors that connections leave to the database, the log and files."""


def raise_limit() -> None:
    """Raise this process's soft limit to its hard limit; processes that it starts inherit it."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, LIMIT_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections_max() -> int:
    """How many connections may be open, by the limit as it is now."""
    if sys.platform == "win32":
        return LIMIT_MAX
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = LIMIT_MAX if soft == resource.RLIM_INFINITY else soft
    return limit - min(RESERVED, limit // 4)
