"""Reading a segment yields some of the frames written, in order, whatever happened to its bytes."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampmon.spool import frame


SALT = frame.salt_of(UUID(int=7), 3)
PAYLOADS = st.lists(st.binary(max_size=40) | st.just(frame.MAGIC * 3), min_size=1, max_size=8)


def written(payloads: list[bytes]) -> bytes:
    segment = b""
    for payload in payloads:
        segment += frame.encode(frame.RECORD, payload, salt=SALT, offset=len(segment))
    return segment


def read(segment: bytes, *, complete: bool) -> tuple[list[bytes], int]:
    pieces = list(frame.scan(segment, salt=SALT, offset=0, complete=complete))
    frames = [piece.payload for piece in pieces if isinstance(piece, frame.Frame)]
    return frames, len(pieces) - len(frames)


def is_subsequence(some: list[bytes], of: list[bytes]) -> bool:
    rest = iter(of)
    return all(payload in rest for payload in some)


@given(PAYLOADS)
def test_whole_segment_gives_back_what_was_written(payloads: list[bytes]) -> None:
    """Frames of any payloads, magic bytes included, are read back equal and in order."""
    assert read(written(payloads), complete=True) == (payloads, 0)


@given(PAYLOADS)
def test_truncation_at_every_byte_loses_the_last_frame_only(payloads: list[bytes]) -> None:
    """A cut segment yields its whole frames. The torn tail is damage only if the segment is complete."""
    segment = written(payloads)
    ends = [0]
    for payload in payloads:
        ends.append(ends[-1] + frame.HEAD_BYTES + len(payload))
    for length in range(len(segment) + 1):
        whole = sum(end <= length for end in ends) - 1
        assert read(segment[:length], complete=False) == (payloads[:whole], 0)
        torn = int(length not in ends)
        assert read(segment[:length], complete=True) == (payloads[:whole], torn)


@given(PAYLOADS, st.data())
def test_flipped_bits_cost_the_frames_that_they_hit(
    payloads: list[bytes], data: st.DataObject
) -> None:
    """Flipped bits lose at most one frame each, count as damage, and never make a new frame."""
    segment = bytearray(written(payloads))
    flips = data.draw(st.sets(st.integers(0, 8 * len(segment) - 1), min_size=1, max_size=3))
    for bit in flips:
        segment[bit // 8] ^= 1 << bit % 8
    frames, damage = read(bytes(segment), complete=True)
    assert is_subsequence(frames, payloads)
    assert len(payloads) - len(flips) <= len(frames) < len(payloads)
    assert damage >= 1


@given(PAYLOADS, st.binary(min_size=1, max_size=60), st.integers(0, 8))
def test_foreign_bytes_between_frames_are_skipped(
    payloads: list[bytes], garbage: bytes, position: int
) -> None:
    """Frames after foreign bytes, as a torn write leaves them, are all read."""
    before = written(payloads[:position])
    segment = before + garbage
    for payload in payloads[position:]:
        segment += frame.encode(frame.RECORD, payload, salt=SALT, offset=len(segment))
    assert read(segment, complete=True) == (payloads, 1)


def test_frame_inside_a_torn_frame_is_not_read() -> None:
    """A frame inside the payload of a torn frame is not read."""
    inner = frame.encode(frame.RECORD, b"inner", salt=SALT, offset=0)
    torn = frame.encode(frame.RECORD, inner * 3, salt=SALT, offset=0)[:-1]
    assert read(torn, complete=True) == ([], 1)


def test_frame_of_another_spool_is_not_read() -> None:
    """A frame is valid only in its own segment and at its own offset."""
    segment = written([b"one", b"two"])
    other = frame.salt_of(UUID(int=8), 3)
    pieces = list(frame.scan(segment, salt=other, offset=0, complete=True))
    assert pieces == [frame.Damage(len(segment))]
    moved = list(frame.scan(segment, salt=SALT, offset=1, complete=True))
    assert moved == [frame.Damage(len(segment) + 1)]


@given(st.binary(max_size=300))
def test_noise_holds_no_frame(noise: bytes) -> None:
    """Random bytes are never read as a frame."""
    assert read(noise, complete=True)[0] == []


def test_oversized_payload_is_refused() -> None:
    """A payload above the limit raises a ValueError when it is encoded."""
    with pytest.raises(ValueError, match="at most"):
        frame.encode(frame.RECORD, bytes(frame.PAYLOAD_BYTES_MAX + 1), salt=SALT, offset=0)
