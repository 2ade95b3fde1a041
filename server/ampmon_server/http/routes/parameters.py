"""Query parameters that several routes take, with their bounds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Query
from pydantic import BeforeValidator, GetCoreSchemaHandler

from ampmon.wire import COUNT_MAX
from ampmon_server.analysis.policy.scalers import BOUNDS


NO_NUL = r"^[^\x00]*$"
"""For text in database queries: PostgreSQL's text cannot contain a null character."""

Number = Annotated[int | None, Query(ge=0, le=COUNT_MAX)]
"""A step, or a time in microseconds since the epoch."""

StreamNumber = Annotated[
    int | None,
    Query(
        ge=0, le=COUNT_MAX, description="A stream of the run; its scaler is shown over all ranks."
    ),
]
Limit = Annotated[int, Query(ge=1, le=1000)]
RowCursor = Annotated[str | None, Query(pattern=r"^[0-9]{1,18}(-[0-9]{1,18}){3}$")]
"""Where the next page of a run's rows begins, as the page before gives it."""

ScalarName = Annotated[
    str | None,
    Query(max_length=256, pattern=NO_NUL, description="The value's name in `ampmon.log`."),
]

ParameterName = Annotated[
    str | None,
    Query(max_length=1024, pattern=NO_NUL, description="A parameter by its name in the model."),
]


@dataclass(frozen=True, slots=True)
class OneOf:
    """Accepts only these names, as `Literal` does for names that are known to the type checker."""

    names: Collection[str]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return handler(Literal[tuple(self.names)])


def setting(name: str, alias: str | None = None) -> Any:
    """A numeric setting of a policy. The OpenAPI document shows its bounds; the policy enforces and explains them."""
    return Query(alias=alias, json_schema_extra=dict(BOUNDS[name]))


def _split(given: list[str]) -> list[str]:
    return [each for listed in given for each in listed.split(",")]


# Lists are comma-separated, as the OpenAPI document says of every list in a query.
RunIds = Annotated[list[UUID], BeforeValidator(_split)]
"""Ids of runs. Each route sets their maximum number."""
