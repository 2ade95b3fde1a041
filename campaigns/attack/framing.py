"""Request smuggling: bytes that a proxy may take for one request and the server must not take for two."""

from __future__ import annotations

from collections.abc import Iterator

from campaigns.attack.raw import Wire, request
from campaigns.attack.tally import Tally, every


CODINGS = (
    b"Transfer-Encoding: chunked",
    b"transfer-encoding: CHUNKED",
    b"Transfer-Encoding:\tchunked",
    b"Transfer-Encoding:chunked ",
    b"Transfer-Encoding: \x0bchunked",
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding: identity, chunked",
    b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
    b"Transfer-Encoding : chunked",
    b" Transfer-Encoding: chunked",
    b"Transfer-Encoding:\r\n chunked",
    b"X: y\nTransfer-Encoding: chunked",
    b"X: y\rTransfer-Encoding: chunked",
    b"X: y\0\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding: 'chunked'",
    b'Transfer-Encoding: "chunked"',
    b"Transfer-Encoding: chunked;q=1",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-\xc3\x89ncoding: chunked",
)
LENGTHS = (
    b"%d",
    b"+%d",
    b" %d ",
    b"%d, %d",
    b"%d\r\nContent-Length: 0",
    b"0\r\nContent-Length: %d",
)
NO_LENGTHS = (
    b"-%d",
    b"0x%x",
    b"%d.0",
    b"%de0",
    b"%d_0",
    b"%d 0",
    b"%d,0",
    b"\xd9\xa3%d",
    b"%d\x0b",
)
SIZES = (
    b"0x2",
    b"+2",
    b"-2",
    b" 2",
    b"2_0",
    b"2\r",
    b"2\0",
    b"2;x=\n",
    b";2",
    b"",
    b"2\x0b",
    b"g",
    b"2,2",
    b"2.0",
    b"F" * 17,
    b"F" * 4000,
    b"\xb2",
    b"2\n",
)
ENDS = (b"XX", b"\n", b"\n\n", b"\r", b"\rX", b"X\n", b"", b"\0\0")
PATHS = ("/login", "/logout", "/api/v1/ingest", "/api/v1/proof")


def smuggle(tally: Tally, wire: Wire, token: str, nth: int = 1) -> None:
    """Send ambiguous requests with another inside, which must not be served."""
    inner = request(
        "GET", "/healthz", [("Host", "127.0.0.1"), ("Authorization", f"Bearer {token}")]
    )
    for kind, attacks in (
        ("smuggled: length and chunks", list(_both(inner))),
        ("smuggled: lengths", list(_lengths(inner))),
        ("smuggled: chunk sizes, ends and extensions", list(_chunks(inner))),
    ):
        tally.each(kind, every(attacks, nth), lambda sent: _served(wire, sent), at_once=48)


def _served(wire: Wire, sent: bytes) -> object:
    answers = wire.send(sent)
    served = any(each.status < 400 for each in answers[1:])
    return answers if served or any(each.status in {500, 503} for each in answers) else None


def _both(inner: bytes) -> Iterator[bytes]:
    for path in PATHS:
        for coding in CODINGS:
            for length in LENGTHS:
                for first in (True, False):
                    yield _head(path, coding, length, b"0\r\n\r\n" + inner, first=first)
                    chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(inner), inner)
                    yield _head(path, coding, length, chunk, first=first, claimed=4)


def _head(
    path: str, coding: bytes, length: bytes, body: bytes, *, first: bool, claimed: int | None = None
) -> bytes:
    count = len(body) if claimed is None else claimed
    given = b"Content-Length: " + length.replace(b"%d", b"%d" % count)
    pair = (given, coding) if first else (coding, given)
    return b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\n%b\r\n%b\r\n\r\n%b" % (
        path.encode(),
        *pair,
        body,
    )


def _lengths(inner: bytes) -> Iterator[bytes]:
    for path in PATHS:
        for length in (*NO_LENGTHS, *LENGTHS[3:]):
            for claimed in (len(inner), 5):
                framing = length.replace(b"%d", b"%d" % claimed).replace(b"%x", b"%x" % claimed)
                head = b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %b\r\n\r\n"
                yield head % (path.encode(), framing) + inner


def _chunks(inner: bytes) -> Iterator[bytes]:
    for path in PATHS:
        head = (
            b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
            % path.encode()
        )
        for size in SIZES:
            for data in (b"ab", b""):
                yield head + size + b"\r\n" + data + b"\r\n0\r\n\r\n" + inner
        for end in ENDS:
            yield head + b"2\r\nab" + end + b"0\r\n\r\n" + inner
            yield head + b"2\r\nab" + end + inner
