"""What routes ask of whoever calls, whom the guard has put into the request's state."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from ampmon_server.auth import Caller


async def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


CallerDependency = Annotated[Caller, Depends(_caller)]
