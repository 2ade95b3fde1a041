"""Declares kinds of columns and tables. Tables with data of a run are keyed by `run_id` first."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
)


metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)


def key_text(length: int | None = None) -> String:
    """Text that is a key or sorts like one: by code point, on every engine and in every locale."""
    return String(length).with_variant(String(length, collation="C"), "postgresql")


def key(name: str, kind: type[BigInteger] | String = BigInteger) -> Column[Any]:
    return Column(name, kind, primary_key=True, autoincrement=False)


def count(name: str) -> Column[Any]:
    return Column(name, BigInteger, nullable=False, default=0)


def flag(name: str) -> Column[Any]:
    return Column(name, SmallInteger, nullable=False, default=0)


def real(name: str) -> Column[Any]:
    return Column(name, Double)


def of_run(name: str, *columns: Column[Any], large: bool = False) -> Table:
    run_id: Column[Any] = Column(
        "run_id", LargeBinary(16), ForeignKey("runs.run_id"), primary_key=True
    )
    # Without a rowid, SQLite stores rows in the key's B-tree and writes no second one. Large rows do not gain from it.
    return Table(name, metadata, run_id, *columns, sqlite_with_rowid=large)


def of_samples(name: str, *, large: bool) -> Table:
    """Blocks of consecutive samples of an attempt, packed."""
    return of_run(
        name,
        key("stream"),
        key("first_step"),
        key("attempt"),
        Column("last_step", BigInteger, nullable=False),
        Column("data", LargeBinary, nullable=False),
        # How many samples: small neighbouring blocks are packed into one.
        Column("samples", BigInteger, nullable=False),
        large=large,
    )


def rolled_up(name: str, *of: Column[Any]) -> Table:
    """Pages of cells: a row holds the cells of one level under one cell of the next (`store.pages.pyramid`)."""
    return of_run(
        name,
        key("stream"),
        *of,
        key("level"),
        key("bucket"),
        Column("data", LargeBinary, nullable=False),
        large=True,
    )


def by_digest(name: str, *columns: Column[Any]) -> Table:
    digest: Column[Any] = Column("digest", LargeBinary(32), primary_key=True)
    return Table(name, metadata, digest, *columns, sqlite_with_rowid=False)
