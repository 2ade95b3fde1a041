"""What a store keeps of who may come in: tokens, login codes, and sessions that were signed out."""

from __future__ import annotations

from sqlalchemy import Engine

from ampmon_server.store import engine, logins, sessions, tokens
from ampmon_server.store.tokens import Token


class Entry:
    """Each call is one transaction; times are us since the epoch. Every call may raise Busy."""

    _engine: Engine

    def keep_login(self, digest: bytes, token_id: str, expires: int, now: int) -> None:
        """Let a login code, of which this is the digest, be good until ``expires``, for what that token may do."""
        engine.write(
            self._engine,
            lambda connection: logins.keep(connection, digest, token_id, expires, now),
        )

    def logins(self, now: int) -> set[bytes]:
        """The digests of all login codes that are good."""
        with engine.reading(self._engine) as connection:
            return logins.read_all(connection, now)

    def use_login(self, digest: bytes, now: int) -> str | None:
        """Use a login code up; the id of the token that it was made with, None where it was not good."""
        return engine.write(self._engine, lambda connection: logins.use_up(connection, digest, now))

    def revoke_session(self, digest: bytes, expires: int, now: int) -> None:
        """Keep a session, of which this is the digest, revoked until ``expires``."""
        engine.write(
            self._engine,
            lambda connection: sessions.revoke(connection, digest, expires, now),
        )

    def is_session_revoked(self, digest: bytes) -> bool:
        """Whether the session with this digest was signed out."""
        with engine.reading(self._engine) as connection:
            return sessions.is_revoked(connection, digest)

    def keep_token(self, token: Token) -> None:
        """Raises NameTaken where one that is still good has its name."""
        engine.write(self._engine, lambda connection: tokens.keep(connection, token))

    def tokens(self) -> list[Token]:
        """Every token that was ever made, the newest first."""
        with engine.reading(self._engine) as connection:
            return tokens.read_all(connection)

    def token(self, token_id: str) -> Token | None:
        """The token with this id, good or not; None for one that never was."""
        with engine.reading(self._engine) as connection:
            return tokens.find(connection, token_id)

    def revoke_token(self, named: str, now: int) -> list[Token]:
        """Revoke the tokens with this id or name; as they were before. Raises NotFound."""
        return engine.write(self._engine, lambda connection: tokens.revoke(connection, named, now))

    def mark_token_used(self, digest: bytes, now: int) -> None:
        """Note that a token was used."""
        engine.write(self._engine, lambda connection: tokens.mark_used(connection, digest, now))
