"""`ampmon serve` without the guard's questions: whoever comes is taken for the holder of the server's own token.

For measuring only, and no part of what is installed.
"""

from __future__ import annotations

import sys

from starlette.responses import Response
from starlette.types import Scope

from ampmon_server.auth.caller import OPERATOR
from ampmon_server.auth.guard import Guard
from ampmon_server.cli import main


async def _nobody(_: Guard, scope: Scope) -> Response | None:
    scope.setdefault("state", {})["caller"] = OPERATOR
    return None


if __name__ == "__main__":
    Guard._refusal = _nobody  # type: ignore[assignment, method-assign]
    sys.exit(main())
