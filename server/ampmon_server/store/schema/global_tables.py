"""Declares the small tables that belong to no run. A cluster keeps a copy of them on every node."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Index, LargeBinary, SmallInteger, String, Table, Text

from ampmon_server.store.schema.tables import count, flag, key_text, metadata


def by_digest(name: str, *columns: Column[Any]) -> Table:
    digest: Column[Any] = Column("digest", LargeBinary(32), primary_key=True)
    return Table(name, metadata, digest, *columns, sqlite_with_rowid=False)


# The destinations that runs are forwarded to, and since when. Runs without records since then are not forwarded.
destinations = Table(
    "destinations",
    metadata,
    Column("destination", key_text(), primary_key=True),
    Column("since", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# Access tokens, each under its digest.
tokens = by_digest(
    "tokens",
    Column("name", String(64), nullable=False),
    Column("owner", String(256), nullable=False),
    # JSON: what the token may do, and the projects that it may access; null for all projects.
    Column("scopes", Text, nullable=False),
    Column("projects", Text),
    Column("made", BigInteger, nullable=False),
    Column("expires", BigInteger),
    Column("last_used", BigInteger),
    Column("revoked", BigInteger),
)

# Signed-out sessions and used login codes of browsers, each under its digest, kept until they would have expired.
revoked_sessions = by_digest(
    "revoked_sessions",
    Column("expires", BigInteger, nullable=False),
)

# Messages to alert targets, kept until some days after they are due. A server process takes a message by moving `due`
# forward: no other process sends it meanwhile, and another retries if this one dies. `due` is null if nothing is left
# to do.
messages = Table(
    "messages",
    metadata,
    Column("message_id", LargeBinary(16), primary_key=True),
    Column("target", String(64), nullable=False),
    Column("project", String(256), nullable=False),
    Column("of_run", LargeBinary(16), nullable=False),
    Column("rule", String(64), nullable=False),
    Column("made", BigInteger, nullable=False),
    Column("title", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("due", BigInteger),
    count("attempts"),
    # Whether it was held back because too many messages were sent within an hour.
    flag("held"),
    Column("sent", BigInteger),
    # Why the newest attempt failed: the kind of failure, and the status that the receiver returned.
    Column("trouble", String(16)),
    Column("status", SmallInteger),
    sqlite_with_rowid=False,
)
Index(None, messages.c.due)
Index(None, messages.c.of_run)

# Muted alerts: of one run, a project or all; of one rule or any; until a time or for ever.
mutes = Table(
    "mutes",
    metadata,
    Column("mute_id", LargeBinary(16), primary_key=True),
    Column("project", String(256)),
    Column("of_run", LargeBinary(16)),
    Column("rule", String(64)),
    Column("until", BigInteger),
    Column("made", BigInteger, nullable=False),
    Column("made_by", String(256), nullable=False),
    sqlite_with_rowid=False,
)
