"""Methods of a store that call one function of the database, each in a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine

from ampmon_server.store.engine import engine


Given = ParamSpec("Given")
Result = TypeVar("Result")


class Calls:
    """What has a database. Every call may raise Busy."""

    _engine: Engine


def reads(
    function: Callable[Concatenate[Connection, Given], Result],
) -> Callable[Concatenate[Calls, Given], Result]:
    """A method that calls ``function`` with one consistent view of the database."""

    @wraps(function)
    def method(self: Calls, /, *given: Given.args, **named: Given.kwargs) -> Result:
        with engine.reading(self._engine) as connection:
            return function(connection, *given, **named)

    return method


def writes(
    function: Callable[Concatenate[Connection, Given], Result],
) -> Callable[Concatenate[Calls, Given], Result]:
    """A method that calls ``function`` in a transaction that is committed, and anew where another was in its way."""

    @wraps(function)
    def method(self: Calls, /, *given: Given.args, **named: Given.kwargs) -> Result:
        return engine.write(self._engine, lambda connection: function(connection, *given, **named))

    return method
