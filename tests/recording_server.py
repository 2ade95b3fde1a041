"""A real HTTP server for tests of the client, which stores batches and fails on request."""

from __future__ import annotations

import contextlib
import http.server
import threading
import zlib
from collections import deque
from collections.abc import Collection, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import zstandard

from ampmon.errors import HeaderMissing, Refused
from ampmon.transport.proof import PROOF_PATH, digest_of, id_of, proof
from attempts import TOKEN
from doubles import MemoryTransport
from http_server import HttpServer, QuietHandler
from waiting import DEADLINE_S


USUAL = ("a-token", "geheim", TOKEN)
"""The tokens that tests send."""


class RecordingServer(HttpServer):
    """``store`` holds the received records. ``planned`` holds (status, headers) to answer next, in order, instead.

    Requests for a proof of the token are answered like a server does, and neither use ``planned`` nor are kept.
    A planned status of 0 closes the connection without an answer, and -1 lets a request through. With the header
    "Server", the answer is somebody else's. With the ``pair`` of a certificate and its key, it speaks TLS.
    """

    def __init__(
        self, port: int = 0, token: str | None = None, pair: tuple[Path, Path] | None = None
    ) -> None:
        self.store = MemoryTransport()
        self.planned: deque[tuple[int, dict[str, str]]] = deque()
        self.requests: list[dict[str, str]] = []
        self.token = token
        self._speaks = threading.Event()
        self._speaks.set()
        server = self

        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                server._answer(self)

            def do_GET(self) -> None:
                if self.path.startswith(PROOF_PATH):
                    server._respond(self, 200, {}, server._proof(self.path))
                    return
                server.requests.append({"path": self.path, "method": "GET"})
                self.send_error(404)

        super().__init__(Handler, port, pair)
        self.port = self.server_port
        self.url = f"http://{self.netloc}"

    def _answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["Content-Length"]))
        self.requests.append({"path": request.path, "method": "POST", **request.headers})
        status, headers, answer = self._outcome(request, body)
        if status == 0:
            request.close_connection = True
            return
        assert self._speaks.wait(DEADLINE_S)
        self._respond(request, status, headers, answer)

    def _proof(self, path: str) -> bytes:
        """The proof of its token; without one of its own, it knows the tokens in USUAL."""
        known = USUAL if self.token is None else (self.token,)
        return answer_for(path, known)

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """Answer batches only after the block ends. Proofs are still answered."""
        self._speaks.clear()
        try:
            yield
        finally:
            self._speaks.set()

    def _respond(
        self,
        request: http.server.BaseHTTPRequestHandler,
        status: int,
        headers: dict[str, str],
        answer: bytes,
    ) -> None:
        with contextlib.suppress(ConnectionError):  # the client did not wait
            request.send_response(status)
            for name, value in headers.items():
                request.send_header(name, value)
            request.send_header("Content-Length", str(len(answer)))
            request.end_headers()
            request.wfile.write(answer)

    def _outcome(
        self, request: http.server.BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        status, headers = self.planned.popleft() if self.planned else (-1, {})
        if status >= 0:
            page = b"<h1>Bad Request</h1>" if "Server" in headers else problem(status, "as planned")
            return status, headers, page
        if self.token is not None and request.headers["Authorization"] != f"Bearer {self.token}":
            return 401, {}, b"{}"
        if request.headers.get("Content-Encoding") == "gzip":
            body = zlib.decompress(body, 16 + zlib.MAX_WBITS)
        elif request.headers.get("Content-Encoding") == "zstd":
            body = zstandard.ZstdDecompressor().decompress(body)
        try:
            ack = self.store.send(body)
        except HeaderMissing:
            return 409, {}, problem(409, "a header is missing")
        except Refused as error:
            return error.status, {}, problem(error.status, str(error))
        return 200, {"Content-Type": "application/json"}, msgspec.json.encode(ack)


def problem(status: int, detail: str) -> bytes:
    """The body of a server's error."""
    return msgspec.json.encode({"title": "planned", "status": status, "detail": detail})


def answer_for(path: str, known: Collection[str]) -> bytes:
    """The answer to a request for a proof at ``path`` from a server that has these tokens."""
    asked = {name: values[0] for name, values in parse_qs(urlsplit(path).query).items()}
    digests = {id_of(digest_of(each)): digest_of(each) for each in known}
    digest = digests.get(asked["token"], b"")
    return msgspec.json.encode({"proof": proof(digest, asked["nonce"], asked["address"])})
