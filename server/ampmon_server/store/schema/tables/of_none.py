"""What is of no run, and small: a cluster keeps a copy on every node."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    LargeBinary,
    SmallInteger,
    String,
    Table,
    Text,
)

from ampmon_server.store.schema.tables.declaring import by_digest, count, flag, key_text, metadata


# Where runs are forwarded to, and since when: those that recorded nothing since then are not.
destinations = Table(
    "destinations",
    metadata,
    Column("destination", key_text(), primary_key=True),
    Column("since", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# Access tokens, and the codes that bring a browser in, each by its digest.
tokens = by_digest(
    "tokens",
    Column("name", String(64), nullable=False),
    Column("owner", String(256), nullable=False),
    # JSON: what it may do, and the projects that it opens; null for all of them.
    Column("scopes", Text, nullable=False),
    Column("projects", Text),
    Column("made", BigInteger, nullable=False),
    Column("expires", BigInteger),
    Column("last_used", BigInteger),
    Column("revoked", BigInteger),
)

logins = by_digest(
    "logins",
    Column("expires", BigInteger, nullable=False),
    # With which token it was made: `own` for the one in the data directory.
    Column("token_id", String(12), nullable=False),
)

# Sessions of browsers that were signed out, each by its digest, until they would have ended by themselves.
revoked_sessions = by_digest(
    "revoked_sessions",
    Column("expires", BigInteger, nullable=False),
)

# Messages to targets of alerts, kept from when they are due until some days after. Who delivers one takes it by moving
# `due` on: so it is sent by one, and again where that one died. `due` is null where nothing more is to be done.
messages = Table(
    "messages",
    metadata,
    Column("message_id", LargeBinary(16), primary_key=True),
    Column("target", String(64), nullable=False),
    Column("of_run", LargeBinary(16), nullable=False),
    Column("rule", String(64), nullable=False),
    Column("made", BigInteger, nullable=False),
    Column("title", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("due", BigInteger),
    count("attempts"),
    # Whether it was kept back because too many had been sent within an hour.
    flag("held"),
    Column("sent", BigInteger),
    # Why the newest attempt failed: a class of trouble, and the status that was answered.
    Column("trouble", String(16)),
    Column("status", SmallInteger),
    sqlite_with_rowid=False,
)
Index(None, messages.c.due)
Index(None, messages.c.of_run)

# What no target is alerted of: of one run, of a project or of all, by one rule or any; until a time or for ever.
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
