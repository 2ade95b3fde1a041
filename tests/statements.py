"""Which statements the server runs, and whether PostgreSQL plans each with the rows of only one run."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from sqlalchemy import Engine, event

from ampmon_server.store.schema.tables import metadata


OF_RUNS = {table.name for table in metadata.tables.values() if "run_id" in table.c}
_OURS = "ampmon_server."
_HELPERS = {"store.engine.engine", "store.engine.rows"}
"""Modules that run statements built by others."""
_PLANNED = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")
_RUN = r"'\\x[0-9a-f]{32}'::bytea"
_ONE = re.compile(rf"\(+(?:\w+\.)?run_id = ({_RUN})\)")


@dataclass(frozen=True)
class Statement:
    """A statement, the server function that first ran it, and the parameters it had then."""

    by: str
    text: str
    parameters: Any


@contextmanager
def listening(note: Callable[..., None], engine: Engine | type[Engine] = Engine) -> Iterator[None]:
    """Call ``note`` before each statement of an engine, by default of every engine in this process."""
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", note)


@contextmanager
def statements(engine: Engine | type[Engine] = Engine) -> Iterator[list[str]]:
    """The text of each statement that an engine executes meanwhile, by default every engine in this process."""
    executed: list[str] = []
    with listening(lambda *happening: executed.append(happening[2]), engine):
        yield executed


@contextmanager
def logged() -> Iterator[list[Statement]]:
    """Each statement of each server function once, from every engine in this process."""
    seen: dict[tuple[str, str], Statement] = {}
    executed: list[Statement] = []

    def note(*happening: Any) -> None:
        _, _, text, parameters, _, many = happening
        by = _caller()
        if by and (by, text) not in seen and text.lstrip().upper().startswith(_PLANNED):
            seen[by, text] = Statement(by, text, parameters[0] if many else parameters)
            executed.append(seen[by, text])

    with listening(note):
        yield executed


def _caller() -> str:
    """The running function of the server as module.function, or "" if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        place = module.removeprefix(_OURS)
        if module.startswith(_OURS) and place not in _HELPERS and not function.startswith("<"):
            return f"{place}.{function}"
        frame = frame.f_back
    return ""


class Planner:
    """Gets plans from PostgreSQL that use a key whenever there is one, even for few rows."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        for way in ("seqscan", "bitmapscan"):
            connection.execute(f"SET enable_{way} = off")

    def tables(self, statement: Statement) -> set[str]:
        """The tables with a run_id that a statement uses."""
        named = {node.get("Relation Name") for node in self._nodes(statement)}
        return {name for name in named if name in OF_RUNS}

    def unbound(self, statement: Statement) -> list[str]:
        """The tables with a run_id that a statement does not access by the key of one single run.

        Each table must have the same constant. The planner passes it on to joined tables, but not into correlated
        subqueries, for which Citus asks every node.
        """
        found, constants = [], set()
        for node in self._nodes(statement):
            table = node.get("Relation Name")
            if table not in OF_RUNS:
                continue
            if node["Node Type"] == "ModifyTable":
                if node["Operation"] != "Insert":
                    continue  # the rows come from a scan below
                bound = re.match(f"({_RUN})", node["Plans"][0]["Output"][0])
            else:
                bound = _ONE.match(node.get("Index Cond", ""))
            if bound is None:
                found.append(table)
            else:
                constants.add(bound[1])
        return found if len(constants) < 2 else [*found, *sorted(constants)]

    def _nodes(self, statement: Statement) -> Iterator[dict[str, Any]]:
        asked = f"EXPLAIN (FORMAT JSON, VERBOSE) {statement.text}"
        ((plan,),) = self._connection.execute(asked, statement.parameters).fetchall()  # type: ignore[call-overload]
        waiting = [plan[0]["Plan"]]
        while waiting:
            node = waiting.pop()
            waiting += node.get("Plans", [])
            yield node
