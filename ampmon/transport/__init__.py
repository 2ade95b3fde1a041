"""Sends batches to a server: the `Transport` protocol, and HTTP. Callers decide what becomes of a batch."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import os
import re
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec
import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from ampmon import wire
from ampmon.config import Route
from ampmon.errors import NO_TOKEN, HeaderMissing, Refused, Unreachable
from ampmon.system import private
from ampmon.transport.proof import ProvenConnection
from ampmon.transport.tunnel import PAST_SOCKS, Tunnels


CONNECT_TIMEOUT_S = 5.0
"""Timeout to connect, and for each piece of the server's proof."""
READ_TIMEOUT_S = 30.0
"""Timeout to send a batch, and between two pieces of an answer."""
TOTAL_TIMEOUT_S = 90.0
"""Timeout for a whole request."""
INGEST_PATH = "/api/v1/ingest"
TOO_LARGE = 413
BLAMES_THE_BATCH = frozenset({400, 409, TOO_LARGE, 422})
"""Statuses from a server that has read the batch. Others come from a gateway or another program.

These do too, unless they come with a problem document. A gateway's 413 is an exception: a smaller batch may pass.
"""
_COMPRESSED_FROM_BYTES = 512
# 5000 updates, and 45 samples of 148 parameters: gzip's level 1 shrinks them to 6 and 9 % at 100-150 MB/s and unpacks
# at 350-480 MB/s. zstd shrinks them to 4 and 5 % at 320-1450 MB/s and unpacks at 1000-3700 MB/s.
_LEVEL = 1
_ANSWER_BYTES_MAX = 2**20
_RETRY_AFTER_MAX_S = 300.0
# 401 too: each attempt reads the token again, and its file may be replaced.
_TRANSIENT = frozenset({401, 408, 425, 429})
# http.client's ValueError quotes a header that it refuses: it must not reach a log.
_LOST = (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError, ValueError)
_Answer: TypeAlias = tuple[int, bytes, str | None]
"""Status, body and Retry-After."""


NOT_ACCEPTED = "HTTP 401: the token was not accepted"


class Transport(Protocol):
    """Delivers an encoded batch, and answers once it is stored. New connections over https take the ``route``."""

    route: Route

    def send(self, batch: bytes) -> wire.Ack:
        """Deliver ``batch``. Blocks, within time limits.

        Raises Unreachable if a retry may help, HeaderMissing if the server lacks headers, and Refused if the batch
        itself is at fault. After status 413 (`TOO_LARGE`), a smaller batch may pass.
        """

    def close(self) -> None:
        """Close the connections."""


class HttpTransport:
    """Posts batches to the ampmon server at ``url``. If that is a function, it returns the server's current URL.

    The token is ``token``, or else the content of ``token_file``, read at each attempt: the server creates that file
    when it first starts, which may be later. Nothing is sent without a token. Nothing is sent before the server has
    shown a trusted TLS certificate or, over plain http, proven that it knows the token. Follows no redirect, and puts
    the token only into the request's header. ``route`` leads to an https server.
    """

    def __init__(
        self,
        url: str | Callable[[], str],
        *,
        token: str | None = None,
        token_file: Path | None = None,
        route: Route | None = None,
        read_timeout_s: float = READ_TIMEOUT_S,
        total_timeout_s: float = TOTAL_TIMEOUT_S,
    ) -> None:
        self.route = route or Route()
        self._url = url
        self._token = token
        self._token_file = token_file
        self._read_timeout_s = read_timeout_s
        self._total_timeout_s = total_timeout_s
        self._encoding, self._compress = _compression()
        self._connection: HTTPConnection | None = None
        """Kept between requests, and reopened if the server has closed it."""
        self._connected = "", ""
        """The URL and the token for which the connection was made."""
        self._through = ""
        """The proxy of the connection, or the one that is not used, in words."""

    def send(self, batch: bytes) -> wire.Ack:
        url = self._url if isinstance(self._url, str) else self._url()
        token = self._read_token()
        headers = {"Content-Type": "application/msgpack", "Authorization": f"Bearer {token}"}
        if len(batch) >= _COMPRESSED_FROM_BYTES:
            headers["Content-Encoding"] = self._encoding
            batch = self._compress(batch)
        # Drop the cause: exceptions of the HTTP client may quote what was sent.
        try:
            status, answer, retry_after = self._post(url.rstrip("/"), token, batch, headers)
        except _LOST as error:
            raise Unreachable(f"no answer{self._through}: {why_unanswered(error)}") from None
        if status == 200:
            return _acknowledgement(answer)
        raise _failure(status, answer, retry_after)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _read_token(self) -> str:
        token = self._token
        if token is None and self._token_file is not None:
            try:
                token = private.read(self._token_file).decode("ascii").strip()
            except private.NotPrivate as error:
                raise Unreachable(f"no token is sent: {error.strerror}") from None
            except OSError:
                token = None  # the server has not made it yet, or runs as another user
            except ValueError:
                token = "\n"
        if not token:
            raise Unreachable(NO_TOKEN)
        if not token.isascii() or not token.isprintable():
            raise Unreachable("the token has characters that are not allowed in a token")
        return token

    def _post(self, url: str, token: str, body: bytes, headers: dict[str, str]) -> _Answer:
        """Return the answer in time. Raises the errors of `_LOST`, and Unreachable."""
        overdue = threading.Event()
        # A socket's timeout is for each read: a server that sends a byte a second would block forever.
        watch = threading.Timer(self._total_timeout_s, self._cut, (overdue,))
        watch.daemon = True
        watch.start()
        whole = False
        try:
            answer = self._post_on_kept(url, token, body, headers)
            whole = not overdue.is_set()
        except _LOST:
            if not overdue.is_set():
                raise
        finally:
            watch.cancel()
            # The rest of this exchange would precede the next answer on the connection.
            if not whole:
                self.close()
        if not whole:
            raise TimeoutError("the whole request took too long")
        return answer

    def _cut(self, overdue: threading.Event) -> None:
        overdue.set()
        sock = getattr(self._connection, "sock", None)
        if sock is not None:
            with contextlib.suppress(OSError):
                # Not the TLS socket's own shutdown: it would tear down what another thread is reading from.
                # TLS within TLS to a proxy is no socket, but has one.
                socket.socket.shutdown(getattr(sock, "socket", sock), socket.SHUT_RDWR)

    def _post_on_kept(self, url: str, token: str, body: bytes, headers: dict[str, str]) -> _Answer:
        connection = self._connection
        # For another token, nothing is proven yet.
        if connection and connection.is_connected and self._connected == (url, token):
            # The server may close an idle connection just as this is sent. That is no failure: try a new one.
            with contextlib.suppress(ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
                return self._exchange(connection, url, body, headers)
        return self._exchange(self._connect(url, token), url, body, headers)

    def _connect(self, url: str, token: str) -> HTTPConnection:
        self.close()
        parsed = urllib3.util.parse_url(url)
        # urllib3's pools take the brackets off an IPv6 address; its connections do not.
        host, base = (parsed.host or "").strip("[]"), parsed.path or ""
        connection: HTTPConnection
        self._through = ""
        if parsed.scheme == "https":
            connection = self._connection_over_tls(parsed.host or "", parsed.port)
        else:
            connection = ProvenConnection(
                host, parsed.port, timeout=CONNECT_TIMEOUT_S, token=token, base=base
            )
        # Before it connects, so that `_cut` finds its socket.
        self._connection, self._connected = connection, (url, token)
        connection.connect()
        # From here on, each request gives the socket this longer timeout.
        connection.timeout = self._read_timeout_s
        return connection

    def _connection_over_tls(self, host: str, port: int | None) -> HTTPSConnection:
        named, time_s = self.route.authorities, CONNECT_TIMEOUT_S
        # As with SSL_CERT_FILE, a missing file is no error, and the system's folder is trusted too.
        file = named if named and os.path.isfile(named) else None
        folder = ssl.get_default_verify_paths().capath if file else None
        if self.route.proxy is None:
            host = host.strip("[]")
            self._through = PAST_SOCKS if self.route.past_socks else ""
            return HTTPSConnection(host, port, timeout=time_s, ca_certs=file, ca_cert_dir=folder)
        tunnels = Tunnels(self.route.proxy, timeout=time_s)
        self._through = f" through the proxy {tunnels.place}"
        return tunnels.connection(host, port, file, folder)

    def _exchange(
        self, connection: HTTPConnection, url: str, body: bytes, headers: dict[str, str]
    ) -> _Answer:
        path = (urllib3.util.parse_url(url).path or "") + INGEST_PATH
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            # A server that refuses a body may answer and close before it has read all of it.
            connection.request("POST", path, body, headers, preload_content=False)
        response = connection.getresponse()
        answer = response.read(_ANSWER_BYTES_MAX, decode_content=False)
        return response.status, answer, response.headers.get("Retry-After")


def _compression() -> tuple[str, Callable[[bytes], bytes]]:
    """zstd if its package is installed, as it is beside the server; else gzip, which comes with Python."""
    try:
        import zstandard
    except ImportError:
        return "gzip", lambda body: gzip.compress(body, _LEVEL)
    return "zstd", lambda body: zstandard.ZstdCompressor(level=_LEVEL).compress(body)


def _acknowledgement(answer: bytes) -> wire.Ack:
    try:
        return msgspec.json.decode(answer, type=wire.Ack)
    except msgspec.DecodeError:
        # Another program on this port must not make records vanish.
        raise Unreachable("the response does not come from an ampmon server") from None


def _failure(status: int, answer: bytes, retry_after: str | None) -> Exception:
    problem = problem_in(answer)
    ours = problem.get("status") == status
    stranger = status in BLAMES_THE_BATCH - {TOO_LARGE} and not ours
    if status in _TRANSIENT or status >= 500 or 200 < status < 300 or stranger:
        why = NOT_ACCEPTED if status == 401 else f"HTTP {status}{_detail(problem) if ours else ''}"
        return Unreachable(why + ", not from an ampmon server" * stranger, _seconds(retry_after))
    if status == 409:
        return HeaderMissing("the server lacks a header")
    return Refused(f"HTTP {status}{_detail(problem)}", status)


def problem_in(answer: bytes) -> dict[str, object]:
    """The problem document of an ampmon server, or an empty one. Gateways answer with pages of their own."""
    try:
        return msgspec.json.decode(answer, type=dict[str, object])
    except msgspec.DecodeError:
        return {}


def _detail(problem: dict[str, object]) -> str:
    """The message of a problem document, in one printable line."""
    words = " ".join(str(problem.get("detail") or problem.get("title") or "").split())
    return ": " + "".join(c for c in words if c.isprintable())[:300] if words else ""


def _seconds(retry_after: str | None) -> float | None:
    """Seconds from now until a Retry-After header, which holds seconds or a date. None for any other."""
    try:
        return min(urllib3.Retry().parse_retry_after(retry_after or ""), _RETRY_AFTER_MAX_S)
    except (urllib3.exceptions.InvalidHeader, ValueError, OverflowError):
        return None


def why_unanswered(error: Exception) -> str:
    """Describe an exception in our own words, since its message may quote headers."""
    if isinstance(error, urllib3.exceptions.ProxyError):
        error = error.original_error
    if tunnel := re.match(r"Tunnel connection failed: (\d+)", str(error)):
        return f"the proxy answers HTTP {tunnel[1]}"
    if isinstance(
        error, (urllib3.exceptions.NameResolutionError, urllib3.exceptions.LocationParseError)
    ):
        return "the host name cannot be resolved"
    if isinstance(error, urllib3.exceptions.NewConnectionError):
        return "connection refused"
    if isinstance(error, (urllib3.exceptions.TimeoutError, TimeoutError)):
        return "timed out"
    if isinstance(error, (urllib3.exceptions.SSLError, ssl.SSLError)):
        return "the TLS certificate or connection was not accepted"
    return f"connection lost ({type(error).__name__})"
