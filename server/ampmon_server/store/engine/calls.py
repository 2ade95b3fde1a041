"""Turns functions on a database connection into store methods, each with its own transaction."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine

from ampmon_server.store.engine import engine


Given = ParamSpec("Given")
Result = TypeVar("Result")


class Calls:
    """Base of classes that have a database. Every call may raise Busy."""

    _engine: Engine


def reads(
    function: Callable[Concatenate[Connection, Given], Result],
) -> Callable[Concatenate[Calls, Given], Result]:
    """Return a method that calls ``function`` with one consistent snapshot of the database."""

    @wraps(function)
    def method(self: Calls, /, *given: Given.args, **named: Given.kwargs) -> Result:
        with engine.reading(self._engine) as connection:
            return function(connection, *given, **named)

    return method


def writes(
    function: Callable[Concatenate[Connection, Given], Result],
) -> Callable[Concatenate[Calls, Given], Result]:
    """Return a method that calls ``function`` in a committed transaction, and retries it after a conflict."""

    @wraps(function)
    def method(self: Calls, /, *given: Given.args, **named: Given.kwargs) -> Result:
        return engine.write(self._engine, lambda connection: function(connection, *given, **named))

    return method
