"""Query parameters that routes share, with their bounds."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from ampmon.wire import COUNT_MAX


Number = Annotated[int | None, Query(ge=0, le=COUNT_MAX)]
"""A step, or a time in microseconds since the epoch."""

StreamNumber = Annotated[
    int | None,
    Query(
        ge=0, le=COUNT_MAX, description="A stream of the run; its scaler is shown over all ranks."
    ),
]
Limit = Annotated[int, Query(ge=1, le=1000)]
Cursor = Annotated[str | None, Query(max_length=200)]

ScalarName = Annotated[
    str | None, Query(max_length=256, description="What it was called in `ampmon.log`.")
]

ParameterName = Annotated[
    str | None, Query(max_length=1024, description="A parameter by its name in the model.")
]
