"""Proves to clients that this server knows their token, before they send it: see `ampmon.transport.proof`."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Sequence

from ampmon.transport.proof import digest_of, id_of, proof
from ampmon_server.http.auth.keys import Keys
from ampmon_server.http.auth.tokens import Tokens


_HTTP_PORT = 80


class Proofs:
    """Proves knowledge of the server's own token and those of its database, for the server's own addresses only.

    Those are the local address of a connection and the names in ``named``. A name includes the port that clients dial
    if that differs from the server's.
    """

    def __init__(self, keys: Keys, tokens: Tokens, named: Sequence[str]) -> None:
        self._own = digest_of(keys.token)
        self._spare = hmac.digest(keys.token.encode(), b"proofs of unknown tokens", hashlib.sha256)
        self._tokens = tokens
        self._named = frozenset(each.lower() for each in named)

    def is_own(self, address: str, server: tuple[str, int | None] | None) -> bool:
        """Whether ``address``, which a client dialled, is this server's. ``server`` is this end of the connection."""
        if server is None or server[1] is None:
            return address in self._named
        host, port = _plain(server[0]), server[1]
        name, _, dialled = address.rpartition(":")
        return (
            address == f"{host}:{port}"
            or address in self._named
            or (name in self._named and dialled in {str(port), str(_HTTP_PORT)})
        )

    async def prove(self, nonce: str, token_id: str, address: str) -> str:
        """Return the proof for the token with this id. For an invalid or unknown id, return what looks like a proof.

        May raise Busy and TooManyAttempts.
        """
        spare = hmac.digest(self._spare, token_id.encode(), hashlib.sha256)
        if token_id == id_of(self._own):
            return proof(self._own, nonce, address)
        token = await self._tokens.with_id(token_id, used=False)
        return proof(spare if token is None else token.digest, nonce, address)


def _plain(host: str) -> str:
    """An address as in a URL. A dual-stack socket's IPv4-mapped address becomes plain IPv4."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(found, ipaddress.IPv6Address):
        return str(found.ipv4_mapped) if found.ipv4_mapped else f"[{found}]"
    return str(found)
