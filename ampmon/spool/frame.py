"""Encodes the frames of a segment, and reads damaged segments without mistaking other bytes for a frame.

A frame is ``magic | version | kind | key length | payload length | CRC-32 | key | payload``, little-endian. The CRC
covers everything else and starts from the segment's salt and the frame's offset. So bytes of a frame elsewhere (in a
payload, in another spool) are not a frame. All versions share this layout, so each tells a newer frame from damage.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias
from uuid import UUID

from ampmon.errors import NewerRecords


# 0xC1 is the only byte that begins no msgpack value.
MAGIC = b"\xc1AMP"
VERSION = 1
RECORD: Literal[0] = 0
HEADER: Literal[1] = 1
PAYLOAD_BYTES_MAX = 2**28

Kind: TypeAlias = Literal[0, 1]

_PREFIX = struct.Struct("<4sBBHI")
_CRC = struct.Struct("<I")
HEAD_BYTES = _PREFIX.size + _CRC.size


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame as read. ``end`` is the file offset just after it."""

    kind: Kind
    key: str
    payload: bytes
    end: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes up to the file offset ``end`` that are no frame."""

    end: int


def salt_of(attempt_id: UUID, segment: int) -> int:
    """The value from which the CRCs of a segment start."""
    return zlib.crc32(segment.to_bytes(8, "little"), zlib.crc32(attempt_id.bytes))


def encode(kind: Kind, payload: bytes, key: bytes = b"", *, salt: int, offset: int) -> bytes:
    """Return the bytes of a frame for file offset ``offset``. Raises ValueError if the payload is too long."""
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise ValueError(f"a frame holds at most {PAYLOAD_BYTES_MAX} bytes, not {len(payload)}")
    prefix = _PREFIX.pack(MAGIC, VERSION, kind, len(key), len(payload))
    crc = zlib.crc32(payload, zlib.crc32(prefix + key, salt + offset & 0xFFFFFFFF))
    return prefix + _CRC.pack(crc) + key + payload


def scan(buffer: bytes, *, salt: int, offset: int, complete: bool) -> Iterator[Frame | Damage]:
    """Yield the frames and damaged places of ``buffer``, whose first byte is at file offset ``offset``, in order.

    Bytes at the end that are not yet a frame are left alone, since more may follow. If the segment is ``complete``,
    they are damage.
    """
    at = 0
    while at < len(buffer):
        frame = _frame_at(buffer, at, salt, offset)
        if frame is None:
            following = _next_frame(buffer, at + 1, salt, offset)
            if following is None:
                if complete:
                    yield Damage(offset + len(buffer))
                return
            yield Damage(offset + following)
            at = following
        else:
            yield frame
            at = frame.end - offset


def _next_frame(buffer: bytes, start: int, salt: int, offset: int) -> int | None:
    at = buffer.find(MAGIC, start)
    while at >= 0:
        if _frame_at(buffer, at, salt, offset) is not None:
            return at
        at = buffer.find(MAGIC, at + 1)
    return None


def _frame_at(buffer: bytes, at: int, salt: int, offset: int) -> Frame | None:
    if len(buffer) - at < HEAD_BYTES:
        return None
    _, version, kind, key_length, length = _PREFIX.unpack_from(buffer, at)
    body = at + HEAD_BYTES
    payload_at = body + key_length
    end = payload_at + length
    if end > len(buffer):
        return None
    key, payload = buffer[body:payload_at], buffer[payload_at:end]
    crc = zlib.crc32(
        payload, zlib.crc32(buffer[at : at + _PREFIX.size] + key, salt + offset + at & 0xFFFFFFFF)
    )
    if crc != _CRC.unpack_from(buffer, at + _PREFIX.size)[0]:
        return None
    # Only behind a right CRC, because damaged bytes may look like another version.
    if version != VERSION or kind not in (RECORD, HEADER):
        raise NewerRecords("a newer ampmon wrote these records: upgrade the one that sends them")
    return Frame(kind, key.decode("utf-8", "replace"), payload, offset + end)
