"""Compares the schema of a database with the expected one. Reads only, and does not depend on the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from sqlalchemy import Connection, Dialect, Table, inspect
from sqlalchemy.schema import CreateIndex

from ampmon_server.store.schema.tables import metadata


Part: TypeAlias = Mapping[str, tuple[Any, ...]]
"""The columns or indexes of a table by name, each with the properties that must match."""


def differences(connection: Connection) -> list[str]:
    """Describe what our tables lack and what differs; empty for a sound schema.

    Other tables and indexes are ignored, because an administrator may have made them.
    """
    inspector = inspect(connection)
    columns = inspector.get_multi_columns()
    keys = inspector.get_multi_pk_constraint()
    foreign = inspector.get_multi_foreign_keys()
    indexes = inspector.get_multi_indexes()
    found = []
    for table in metadata.sorted_tables:
        place = (None, table.name)
        if place not in columns:
            found.append(f"table {table.name} is missing")
            continue
        kind = connection.dialect
        has = _columns(columns[place], kind)
        found += _compared(table, "column", has, _columns(_declared(table), kind))
        found += _compared(table, "index", _indexes(indexes[place]), _wanted_indexes(table))
        of_key = tuple(keys[place]["constrained_columns"])
        if of_key != tuple(column.name for column in table.primary_key):
            found.append(f"the primary key of {table.name} differs")
        if sorted(map(_foreign, foreign[place])) != sorted(_wanted_foreign(table)):
            found.append(f"the foreign keys of {table.name} differ")
    return found


def _compared(table: Table, what: str, has: Part, wanted: Part) -> list[str]:
    of = f"of {table.name}"
    missing = [_missing(what, name, table) for name in wanted if name not in has]
    other = [
        f"{what} {name} {of} differs"
        for name in wanted
        if has.get(name, wanted[name]) != wanted[name]
    ]
    beside = [
        f"{what} {name} {of} does not belong to this version" for name in has if name not in wanted
    ]
    return missing + other + (beside if what == "column" else [])


def _missing(what: str, name: str, table: Table) -> str:
    return f"{what} {name} of {table.name} is missing"


def _declared(table: Table) -> list[dict[str, Any]]:
    return [
        {"name": column.name, "type": column.type, "nullable": column.nullable}
        for column in table.columns
    ]


def _columns(listed: Any, dialect: Dialect) -> Part:
    return {
        each["name"]: (each["type"].compile(dialect=dialect), bool(each["nullable"]))
        for each in listed
    }


def _indexes(listed: Any) -> Part:
    return {each["name"]: (tuple(each["column_names"]), bool(each["unique"])) for each in listed}


def _wanted_indexes(table: Table) -> Part:
    return {
        str(index.name): (tuple(column.name for column in index.columns), bool(index.unique))
        for index in table.indexes
    }


def _foreign(listed: Any) -> tuple[Any, ...]:
    return tuple(listed["constrained_columns"]), listed["referred_table"]


def _wanted_foreign(table: Table) -> list[tuple[Any, ...]]:
    return [
        (tuple(constraint.column_keys), constraint.referred_table.name)
        for constraint in table.foreign_key_constraints
    ]


def command_for(connection: Connection, difference: str) -> str | None:
    """The statement that creates a missing index; None for any other difference."""
    for table in metadata.sorted_tables:
        for index in table.indexes:
            if difference == _missing("index", str(index.name), table):
                return " ".join(str(CreateIndex(index).compile(dialect=connection.dialect)).split())
    return None
