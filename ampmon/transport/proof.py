"""Makes a server prove that it knows a token before plain http carries it: an impostor on its port learns nothing.

On each new connection, the client first sends a nonce, the public id of its token, and the address that it is connected
to. The server answers with an HMAC over nonce and address. The key is the token's SHA-256, which is all that the server
stores. It only answers for its own addresses, so a program on another port cannot relay its answer. Over https the
certificate is the proof.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import secrets
from typing import Any
from urllib.parse import urlencode

from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool

from ampmon.config import is_loopback
from ampmon.errors import Unreachable


PROOF_PATH = "/api/v1/proof"
ID_LENGTH = 12
NONCE_LENGTH = 64
_PURPOSE = "ampmon: proof that a server knows a token, 1"
_ANSWER_BYTES_MAX = 4096
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})

NO_PROOF = (
    "the server does not prove that it knows the token, so nothing was sent: if it is an ampmon server older than "
    "this client, upgrade it; if it is another program, stop it or use another port"
)
WRONG_PROOF = (
    "the server does not know the token, so nothing was sent: the token belongs to another server, was revoked or has "
    "expired, or another program uses the port"
)


def digest_of(token: str) -> bytes:
    """What a server stores of a token, a one-time code or a session: its SHA-256."""
    return hashlib.sha256(token.encode(errors="replace")).digest()


def id_of(digest: bytes) -> str:
    """The public id of the token with this digest."""
    return digest.hex()[:ID_LENGTH]


def proof(digest: bytes, nonce: str, address: str) -> str:
    """The proof for the client that chose ``nonce``: the server at ``address`` knows the token with this digest."""
    message = "\0".join((_PURPOSE, nonce, address))
    return hmac.new(digest, message.encode(), hashlib.sha256).hexdigest()


class ProvenConnection(HTTPConnection):
    """Sends only the challenge until the server has proven that it knows ``token``. ``base`` is its URL's path."""

    def __init__(
        self, host: str, port: int | None = None, *, token: str, base: str = "", **more: Any
    ) -> None:
        super().__init__(host, port, **more)
        self._digest = digest_of(token)
        self._base = base

    def connect(self) -> None:
        """Connect and verify the proof. Blocks. Raises Unreachable if it is missing or wrong, and says what to do."""
        super().connect()
        try:
            self._challenge()
        except BaseException:
            self.close()
            raise

    def _challenge(self) -> None:
        nonce, address = secrets.token_hex(NONCE_LENGTH // 2), self._address()
        status, answer = self._asked(
            {"nonce": nonce, "token": id_of(self._digest), "address": address}
        )
        if status in _LATER:
            raise Unreachable(f"HTTP {status}")
        if status == 421:
            raise Unreachable(
                f"the server does not answer for the address {address}, so nothing was sent: if it is yours, and its "
                f"port is forwarded, start it with --allow-host {address}"
            )
        received = _proof_in(answer) if status == 200 else None
        if received is None:
            raise Unreachable(NO_PROOF)
        if not hmac.compare_digest(received, proof(self._digest, nonce, address).encode()):
            raise Unreachable(WRONG_PROOF)

    def _address(self) -> str:
        """The server's address: by IP on loopback, where one name may lead to several programs; else by name."""
        host, port = self.sock.getpeername()[:2]
        if not is_loopback(host.partition("%")[0]):
            host = self.host.lower()
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _asked(self, query: dict[str, str]) -> tuple[int, bytes]:
        """Return status and body of an answer, read from the bare socket: `connect` may run within a request."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        head = (
            f"GET {self._base}{PROOF_PATH}?{urlencode(query)} HTTP/1.1\r\n"
            f"Host: {host}:{self.port}\r\nAccept: application/json\r\n\r\n"
        )
        self.sock.sendall(head.encode("ascii"))
        answer = http.client.HTTPResponse(self.sock, method="GET")
        try:
            answer.begin()
            body = answer.read(_ANSWER_BYTES_MAX)
            # A proof holds for its own connection, so a server that closes it has proven nothing.
            if answer.read(1) or (answer.will_close and answer.status == 200):
                raise Unreachable(NO_PROOF)  # the rest would precede the next answer
        finally:
            answer.close()  # it holds a reference to the socket
        return answer.status, body


class ProvenPool(HTTPConnectionPool):
    """A pool of ProvenConnections to one server. Pass it their ``token`` and ``base``."""

    ConnectionCls = ProvenConnection


def _proof_in(answer: bytes) -> bytes | None:
    try:
        value = json.loads(answer)["proof"]
    except (ValueError, LookupError, TypeError):
        return None
    return value.encode(errors="replace") if isinstance(value, str) else None
