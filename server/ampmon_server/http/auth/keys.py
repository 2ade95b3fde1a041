"""The server's own token, from the data directory or a file that several servers share, and what it signs."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ampmon.errors import ConfigurationError
from ampmon.system import private
from ampmon_server.http.auth.access import OWN


Signed = Literal["cookie", "session", "code"]
"""What the server signs: a browser's cookie, the session of a page without cookies, which sends it as a token, or a
login code, which signs in once."""
SECONDS: Mapping[Signed, int] = {"cookie": 30 * 24 * 3600, "session": 7 * 24 * 3600, "code": 600}
_TOKEN_BYTES = 32
_NONCE_BYTES = 8
_TOKEN_CHARACTERS_MIN = 43


@dataclass(frozen=True, slots=True, repr=False)
class Keys:
    """The server's own token, and what it signs. Never print it: it holds the token."""

    token: str

    @classmethod
    def load(cls, data_directory: Path, token_file: Path | None = None) -> Keys:
        """Load the token of a data directory; create it if needed, readable by its owner only.

        If given, ``token_file`` holds the token instead. It is never created. Raises ConfigurationError.
        """
        try:
            private.directory(data_directory, "server")
            path = data_directory / "token"
            token = _kept(path, secrets.token_urlsafe(_TOKEN_BYTES)) if token_file is None else ""
        except OSError as error:
            raise ConfigurationError(
                f"{data_directory} cannot be used ({error.strerror}): pass another --data-dir"
            ) from None
        if token_file is not None:
            return cls(_shared(token_file))
        if not _is_sound(token):
            raise ConfigurationError(
                f"{path} is damaged: delete it, and the server creates a new token"
            )
        return cls(token)

    @property
    def server_id(self) -> str:
        """An id that servers with the same token share, and no others."""
        return hmac.new(self.token.encode(), b"server id", hashlib.sha256).hexdigest()[:16]

    @property
    def cookie_name(self) -> str:
        # Cookies do not distinguish ports: two servers on one host would log each other's browsers out.
        return f"ampmon_{self.server_id}"

    def is_token(self, given: str) -> bool:
        """Compare in constant time."""
        # As bytes, because it raises an error for text beyond ASCII.
        return hmac.compare_digest(given.encode(), self.token.encode())

    def sign(
        self,
        kind: Signed,
        token_id: str = OWN,
        now: float | None = None,
        seconds: int | None = None,
    ) -> str:
        """Return a cookie's value, a session or a code for a token's holder.

        It is valid while the token is, for `SECONDS` or ``seconds``.
        """
        end = int((time.time() if now is None else now) + (seconds or SECONDS[kind]))
        expiry = f"{end}-{secrets.token_hex(_NONCE_BYTES)}"  # unique, so it can be revoked alone
        return f"{expiry}.{token_id}.{self._signature(kind, token_id, expiry)}"

    def holder(self, kind: Signed, given: str, now: float | None = None) -> str | None:
        """The id of the token that it was signed for; None if not by this server, or if it has expired."""
        # Of one spelling only: what was revoked is known by its text.
        expiry, token_id, signature = given.split(".") if given.count(".") == 2 else ("", "", "")
        expected = self._signature(kind, token_id, expiry)
        if not hmac.compare_digest(signature.encode(), expected.encode()):
            return None
        # After the signature was checked: before, it may be any text.
        end = int(expiry.partition("-")[0])
        return token_id if end > (time.time() if now is None else now) else None

    def _signature(self, kind: Signed, token_id: str, expiry: str) -> str:
        message = f"{kind} for {token_id} of {self.server_id} until {expiry}"
        return hmac.new(self.token.encode(), message.encode(), hashlib.sha256).hexdigest()


def _is_sound(token: str) -> bool:
    return len(token) >= _TOKEN_CHARACTERS_MIN and token.isascii()


def _shared(path: Path) -> str:
    try:
        token = path.read_text(errors="replace").strip()
    except OSError as error:
        raise ConfigurationError(
            f"--token-file {path} cannot be read ({error.strerror}): copy the file `token` of a data directory there"
        ) from None
    if not _is_sound(token):
        raise ConfigurationError(
            f"--token-file {path} holds no token of at least {_TOKEN_CHARACTERS_MIN} characters: "
            "copy the file `token` of a data directory there"
        )
    return token


def _kept(path: Path, fresh: str) -> str:
    """Return the content of ``path``. If it is missing, write ``fresh``, atomically and never over another's file."""
    if not path.exists():
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        private.replace(draft, f"{fresh}\n".encode(), durable=True)
        try:
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
        finally:
            draft.unlink()
    return private.read(path).decode(errors="replace").strip()
