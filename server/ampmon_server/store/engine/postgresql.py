"""Adapts PostgreSQL to the store through psycopg 3: every wait has a timeout, and errors say what to do."""

from __future__ import annotations

from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, text
from sqlalchemy.exc import ArgumentError, DBAPIError

from ampmon.system.installing import install
from ampmon_server.store.engine.errors import Unusable


DRIVER = "postgresql+psycopg"
_NAMES = {"postgres", "postgresql", DRIVER}
"""URL schemes for PostgreSQL: without a driver, or with psycopg."""

CONNECT_TIMEOUT_S = 10
LOCK_TIMEOUT_MS = 5_000
STATEMENT_TIMEOUT_MS = 30_000
_IDLE_TIMEOUT_MS = 60_000
_SESSION = {
    "lock_timeout": LOCK_TIMEOUT_MS,
    "statement_timeout": STATEMENT_TIMEOUT_MS,
    # A server that stalls in a transaction keeps a run's row locked. Closing its connection frees the row.
    "idle_in_transaction_session_timeout": _IDLE_TIMEOUT_MS,
}
_LINE = {
    # Detect a vanished machine within half a minute instead of two hours.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
POOL_SIZE, POOL_OVERFLOW = 8, 8
"""PostgreSQL allows 100 connections by default: enough for five server processes."""
POOL_TIMEOUT_S = 5.0

READS: dict[str, Any] = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
# A writer waits for a run's row, and must then see what the other writer made of it. With
# REPEATABLE READ it would fail instead.
WRITES: dict[str, Any] = {"isolation_level": "READ COMMITTED"}

_CONFLICTS = {"40001", "40P01"}
"""SQLSTATEs of conflicting transactions: a serialization failure, or a broken deadlock."""
_READ_ONLY, _INTERNAL = "25006", "XX"
_TURNS = int.from_bytes(b"ampmon", "big")
"""The key of the advisory lock that serializes schema changes."""
_REMEDIES = {
    **dict.fromkeys(
        ("53", "57"), "wait until it accepts connections again, and check its max_connections"
    ),
    "55P03": "another program's transaction holds a lock there: end it (pg_stat_activity lists it), and try again",
}
"""What to do, by SQLSTATE or its class."""


def is_named_by(url: URL) -> bool:
    """Whether a URL names PostgreSQL, with any driver."""
    return url.drivername.partition("+")[0] in _NAMES


def open_engine(url: URL) -> Engine:
    """Create an engine for the database at ``url`` without connecting. Raises Unusable for an invalid URL."""
    if url.drivername not in _NAMES:
        raise Unusable(f"--database-url: write {DRIVER}:// instead of {url.drivername}://")
    try:
        import psycopg
    except ImportError:
        raise Unusable(f"PostgreSQL needs psycopg: {install('postgres')}") from None

    class Binary(psycopg.Cursor[Any]):
        """Fetches results in binary: a blob as text is twice as long and three times as slow."""

        format = psycopg.pq.Format.BINARY

    session = " ".join(f"-c {name}={value}" for name, value in _SESSION.items())
    given = url.query.get("options", "")
    # Options in the URL come last, so they take precedence.
    url = url.set(drivername=DRIVER).update_query_dict(
        {"options": f"{session} {given if isinstance(given, str) else ' '.join(given)}".strip()}
    )
    try:
        return create_engine(
            url,
            pool_size=POOL_SIZE,
            max_overflow=POOL_OVERFLOW,
            pool_timeout=POOL_TIMEOUT_S,
            pool_pre_ping=True,  # no request gets a dead connection after the database restarts
            # Errors reach logs and clients: without digests, names and records.
            hide_parameters=True,
            connect_args={
                **{name: value for name, value in _LINE.items() if name not in url.query},
                "connect_timeout": CONNECT_TIMEOUT_S,
                "application_name": "ampmon",
                "client_encoding": "utf8",
                "cursor_factory": Binary,
            },
        )
    except ArgumentError as error:
        raise Unusable(f"--database-url: {error}") from None


def confirm(engine: Engine) -> None:
    """Do nothing: PostgreSQL guards its own files."""


def is_conflict(error: BaseException) -> bool:
    """Whether a retry of the transaction may succeed at once."""
    return getattr(error, "sqlstate", None) in _CONFLICTS


def is_read_only(error: BaseException) -> bool:
    """Whether the database is a standby, which psycopg does not report as an OperationalError."""
    return getattr(error, "sqlstate", None) == _READ_ONLY


def is_damage(error: BaseException) -> bool:
    """Whether stored data is damaged."""
    return (getattr(error, "sqlstate", None) or "").startswith(_INTERNAL)


def place(url: URL) -> str:
    """Return the name of a URL's database for messages, without any secret."""
    named = url.query.get("host", "")
    host = url.host or (named if isinstance(named, str) else ", ".join(named)) or "this machine"
    return f"database {url.database or url.username or ''!r} on {host}" + (
        f":{url.port}" if url.port else ""
    )


def command_url(url: URL) -> str:
    """Return a URL to show in a command, without the password, be it before the host or in the query."""
    shown = url.set(drivername=DRIVER).difference_update_query(["password"])
    return shown.set(password=None).render_as_string()


def check(connection: Connection, url: URL) -> None:
    """Raise Unusable if the database does not store text as UTF-8."""
    encoding = connection.scalar(text("SHOW server_encoding"))
    if encoding != "UTF8":
        raise Unusable(
            f"{place(url)} stores text as {encoding}, but names may contain any character: "
            f"create a database with createdb -E UTF8 -T template0"
        )


def lock_schema(connection: Connection) -> None:
    """Wait for other schema changes to end, and block new ones until this transaction ends. Lift its time limits."""
    lift_timeouts(connection)
    # It limits advisory locks too, so a second server would give up during a long upgrade.
    connection.execute(text("SET LOCAL lock_timeout = 0"))
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _TURNS})
    connection.execute(text("SET LOCAL lock_timeout TO DEFAULT"))


def try_lock(connection: Connection, what: str) -> bool:
    """Try to lock ``what`` until this transaction ends, and return whether that worked. Lift its time limits.

    Does not wait if another transaction holds the lock.
    """
    lift_timeouts(connection)
    # A pair of keys never meets the single key of `lock_schema`, but each may have 32 bits only.
    taken = text("SELECT pg_try_advisory_xact_lock(:key, hashtext(:what))")
    return bool(connection.scalar(taken, {"key": _TURNS & 0x7FFFFFFF, "what": what}))


def lift_timeouts(connection: Connection) -> None:
    """Lift the time limits of this transaction, except the lock timeout. Does nothing on SQLite."""
    if connection.dialect.name != "postgresql":
        return
    for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
        connection.execute(text(f"SET LOCAL {name} = 0"))


def refusal(error: DBAPIError, url: URL) -> str:
    """Return one line on why a database could not be opened and what to do. Leaves out the password."""
    # Further lines are hints, other addresses, or the place in a statement.
    reason = str(error.orig).strip().splitlines()[:1] or [type(error.orig).__name__]
    return f"{place(url)} cannot be used ({_without_secret(reason[0], url)}): {_remedy(error, url)}"


def _remedy(error: DBAPIError, url: URL) -> str:
    said, state = str(error.orig), getattr(error.orig, "sqlstate", None) or ""
    user, database = url.username or "ampmon", url.database or "ampmon"
    if state == "42501" or "permission denied" in said:
        return f'as its owner, run there GRANT CREATE ON SCHEMA public TO "{user}", and GRANT CONNECT ON DATABASE'
    if "password" in said or "authentication" in said or "pg_hba.conf" in said:
        return "check the user, and the password in PGPASSWORD or ~/.pgpass"
    if f'role "{user}" does not exist' in said:
        return f"create it with createuser {user}, or pass another user in --database-url"
    if "does not exist" in said and "database" in said:
        return f"create it with createdb {database}, or pass another in --database-url"
    return (
        _REMEDIES.get(state)
        or _REMEDIES.get(state[:2])
        or "check host and port in --database-url, and that PostgreSQL runs there"
    )


def _without_secret(message: str, url: URL) -> str:
    secrets = [url.password, url.query.get("password")]
    for secret in secrets:
        if isinstance(secret, str) and secret:
            message = message.replace(secret, "***")
    return message
