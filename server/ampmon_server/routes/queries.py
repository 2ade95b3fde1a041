"""Query parameters that routes share, with their bounds."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import Query
from pydantic import Field

from ampmon.wire import COUNT_MAX
from ampmon_server.store import BadQuery


NO_NUL = r"^[^\x00]*$"
"""Of text that a database is asked for: PostgreSQL has no text with a null character in it."""

Number = Annotated[int | None, Query(ge=0, le=COUNT_MAX)]
"""A step, or a time in microseconds since the epoch."""

StreamNumber = Annotated[
    int | None,
    Query(
        ge=0, le=COUNT_MAX, description="A stream of the run; its scaler is shown over all ranks."
    ),
]
Limit = Annotated[int, Query(ge=1, le=1000)]
Cursor = Annotated[str | None, Query(max_length=200, pattern=r"^[0-9]+(-[0-9]+)*$")]

ScalarName = Annotated[
    str | None,
    Query(max_length=256, pattern=NO_NUL, description="What it was called in `ampmon.log`."),
]

ParameterName = Annotated[
    str | None,
    Query(max_length=1024, pattern=NO_NUL, description="A parameter by its name in the model."),
]

Interval = Annotated[int, Field(ge=-(2**53), le=2**53)] | None
"""So many updates without a skip, until a scale grows. Which of them can be is the policy's to say, in words."""

RunIds = Annotated[str, Query(max_length=8192, description="Ids with commas between.")]


def runs_in(listed: str, most: int) -> list[UUID]:
    """The ids in a list, each once. Raises BadQuery for what is no id, and for more than ``most``."""
    try:
        found = list(
            dict.fromkeys(UUID(each.strip()) for each in listed.split(",") if each.strip())
        )
    except ValueError:
        raise BadQuery("runs", "it is to be ids of runs with commas between") from None
    if len(found) > most:
        raise BadQuery("runs", f"it has {len(found)} runs, and may have {most}")
    return found
