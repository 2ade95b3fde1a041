"""Runs `ampmon serve` without access checks: every client counts as the holder of the server's own token.

For benchmarks only, and not installed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from starlette.responses import Response
from starlette.types import Scope

from ampmon_server.cli import main
from ampmon_server.http.auth.access import OPERATOR
from ampmon_server.http.auth.guard import Guard


async def _nobody(_: Guard, scope: Scope) -> Response | None:
    scope.setdefault("state", {})["caller"] = OPERATOR
    return None


@contextmanager
def opened() -> Iterator[None]:
    """Turn off the guard's access check within it."""
    with patch.object(Guard, "_refusal", _nobody):
        yield


if __name__ == "__main__":
    with opened():
        sys.exit(main())
