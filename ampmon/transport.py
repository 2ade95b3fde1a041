"""How a batch reaches a server: the `Transport` seam, and HTTP. Knows answers, not what becomes of a batch."""

from __future__ import annotations

import email.utils
import math
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec
import urllib3

from ampmon import wire
from ampmon.errors import HeaderMissing, Refused, Unreachable


CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 30.0
INGEST_PATH = "/api/v1/ingest"
TOO_LARGE = 413
BLAMES_THE_BATCH = frozenset({400, 409, TOO_LARGE, 422})
"""Statuses of a server that has read the batch. Others come from a gateway, or where no ampmon server is."""
_COMPRESSED_FROM_BYTES = 512
# Of 5000 updates, or 45 samples of 148 parameters, gzip's level 1 leaves 6 and 9 % at 100-150 MB/s, and is unpacked at
# 350-480; zstd's leaves 4 and 5 % at 320-1450 MB/s, and is unpacked at 1000-3700.
_LEVEL = 1
_ANSWER_BYTES_MAX = 2**20
_RETRY_AFTER_MAX_S = 300.0
_GZIP = 16 + zlib.MAX_WBITS
_TRANSIENT = frozenset({401, 408, 425, 429})


class Transport(Protocol):
    """Something that takes an encoded batch and answers after it is stored."""

    def send(self, batch: bytes, records: int) -> wire.Ack:
        """Deliver ``batch``, which holds ``records`` records. Blocks, within time limits.

        Raises Unreachable where trying again may help, HeaderMissing where the server lacks headers, and Refused where
        the batch itself is at fault: with status 413 (`TOO_LARGE`) a smaller one may pass.
        """

    def close(self) -> None:
        """Let go of connections."""


class HttpTransport:
    """Posts batches to an ampmon server at ``url``.

    The token is ``token``, or else what ``token_file`` holds at each attempt: the server makes that file when it first
    starts, which may be later. Follows no redirect, verifies TLS certificates, and puts the token nowhere but in the
    request's header.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        token_file: Path | None = None,
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        self._url = url.rstrip("/") + INGEST_PATH
        self._token = token
        self._token_file = token_file
        self._encoding, self._compress = _compression()
        self._pool = urllib3.PoolManager(
            num_pools=1,
            maxsize=1,
            retries=False,
            timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=read_timeout_s),
        )

    def send(self, batch: bytes, records: int) -> wire.Ack:
        headers = {"Content-Type": "application/msgpack", **self._authorization()}
        if len(batch) >= _COMPRESSED_FROM_BYTES:
            headers["Content-Encoding"] = self._encoding
            batch = self._compress(batch)
        # The cause is not kept: exceptions of the HTTP client may quote what was sent.
        try:
            status, answer, retry_after = self._post(batch, headers)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise Unreachable(f"no answer: {_reason(error)}") from None
        if status == 200:
            return _acknowledgement(answer)
        raise _failure(status, answer, retry_after)

    def close(self) -> None:
        self._pool.clear()

    def _authorization(self) -> dict[str, str]:
        token = self._token
        if token is None and self._token_file is not None:
            try:
                token = self._token_file.read_text("ascii").strip()
            except OSError:
                return {}  # the server has not made it yet, or is of another user: it will answer 401
            except ValueError:
                token = "\n"
        if token is None:
            return {}
        if not token.isascii() or not token.isprintable():
            raise Unreachable("the token holds characters that a token cannot have")
        return {"Authorization": f"Bearer {token}"}

    def _post(self, body: bytes, headers: dict[str, str]) -> tuple[int, bytes, str | None]:
        response = self._pool.request(
            "POST", self._url, body=body, headers=headers, redirect=False, preload_content=False
        )
        try:
            answer = response.read(_ANSWER_BYTES_MAX, decode_content=False)
            # What is left of an oversized answer would stand before the next one on this connection.
            if response.read(1, decode_content=False):
                response.close()
        finally:
            response.release_conn()
        return response.status, answer, response.headers.get("Retry-After")


def _compression() -> tuple[str, Callable[[bytes], bytes]]:
    """zstd where its package is, as it is beside the server; gzip, which Python brings along, where it is not."""
    try:
        import zstandard
    except ImportError:
        return "gzip", _gzip
    return "zstd", lambda body: zstandard.ZstdCompressor(level=_LEVEL).compress(body)


def _gzip(body: bytes) -> bytes:
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    return compressor.compress(body) + compressor.flush()


def _acknowledgement(answer: bytes) -> wire.Ack:
    try:
        return msgspec.json.decode(answer, type=wire.Ack)
    except msgspec.DecodeError:
        # Somebody else's server on this port must not make records vanish.
        raise Unreachable("the answer is not that of an ampmon server") from None


def _failure(status: int, answer: bytes, retry_after: str | None) -> Exception:
    if status == 409:
        return HeaderMissing("the server lacks a header")
    if status in _TRANSIENT or status >= 500 or 200 < status < 300:
        hint = ": the token was not accepted" if status == 401 else ""
        return Unreachable(f"HTTP {status}{hint}", _seconds(retry_after))
    return Refused(f"HTTP {status}{_detail(answer)}", status)


def _detail(answer: bytes) -> str:
    """What a problem document says, in one printable line."""
    try:
        problem = msgspec.json.decode(answer, type=dict[str, object])
    except msgspec.DecodeError:
        return ""
    words = " ".join(str(problem.get("detail") or problem.get("title") or "").split())
    return ": " + "".join(c for c in words if c.isprintable())[:300] if words else ""


def _seconds(retry_after: str | None) -> float | None:
    """A Retry-After header, seconds or a date, as seconds from now."""
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return None if math.isnan(seconds) else min(max(seconds, 0.0), _RETRY_AFTER_MAX_S)


def _reason(error: Exception) -> str:
    """An exception in words of ours, for its own may quote headers."""
    if isinstance(error, urllib3.exceptions.NameResolutionError):
        return "the host's name is not known"
    if isinstance(error, urllib3.exceptions.NewConnectionError):
        return "connection refused"
    if isinstance(error, (urllib3.exceptions.TimeoutError, TimeoutError)):
        return "timed out"
    if isinstance(error, urllib3.exceptions.SSLError):
        return "the TLS certificate or connection was not accepted"
    return f"connection lost ({type(error).__name__})"
