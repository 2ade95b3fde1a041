"""Limits on the files and connections that this process may have open."""

from __future__ import annotations

import sys


LIMIT_MAX = 65_536
"""The highest limit to set, and the assumed limit of systems without one."""
RESERVED = 128
"""Descriptors that are kept free for the database, the log and files."""


def raise_limit() -> None:
    """Raise this process's soft limit to its hard limit, at most `LIMIT_MAX`. Child processes inherit it."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, LIMIT_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections_max() -> int:
    """How many connections may be open under the current limit."""
    if sys.platform == "win32":
        return LIMIT_MAX
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = LIMIT_MAX if soft == resource.RLIM_INFINITY else soft
    return limit - min(RESERVED, limit // 4)
