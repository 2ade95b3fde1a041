"""Ingest: reads and decompresses a body within limits, queues the batch, and answers once it is stored."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import msgspec
import zstandard
from fastapi import APIRouter, Request
from starlette.responses import Response

from ampmon import wire
from ampmon_server.http.auth.access import Caller, requires
from ampmon_server.http.decoding import TooLarge, UnsupportedVersion, decode_batch
from ampmon_server.http.metrics import reason_of
from ampmon_server.http.problems import refusals
from ampmon_server.http.routes import bodies
from ampmon_server.http.routes.bodies import BodyRefused, fault
from ampmon_server.http.service import Service
from ampmon_server.store import Advance, Busy, Outcome, Receipt, Sender, Unreadable


router = APIRouter(prefix="/api/v1")

_MSGPACK = {"application/msgpack", "application/x-msgpack", "application/vnd.msgpack"}
# The header of a zstd frame may ask for gigabytes of memory before any content.
_WINDOW_BYTES_MAX = 2**23
_EASY_BYTES, _RATIO_MAX = 2**23, 100
"""A body may decompress to `_EASY_BYTES` plus 100 times its size. Real samples reach 30 times at most."""
_GZIP = 16 + zlib.MAX_WBITS

_BATCH = {"schema": {"$ref": "#/components/schemas/Batch"}}
_ACK = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Ack"}}}}
_DESCRIBED = {
    "requestBody": {
        "required": True,
        "description": "A batch as msgpack (raw bytes) or as JSON (bytes in base64).",
        "content": {"application/msgpack": _BATCH, "application/json": _BATCH},
    }
}


class Sent(NamedTuple):
    """A request body as it arrived, and its sender."""

    body: bytes
    encoding: str
    json: bool
    sender: Sender


Stored: TypeAlias = tuple[Receipt, wire.Batch]


@router.post(
    "/ingest",
    responses={200: _ACK, **refusals(400, 404, 408, 409, 413, 415)},
    openapi_extra=_DESCRIBED,
)
@requires("ingest")
async def ingest(request: Request) -> Response:
    """Store a batch of records: msgpack or JSON, plain, gzip or zstd. Answers once it is committed."""
    # Not FastAPI dependencies: to resolve these two takes a tenth of the time of a small batch.
    service: Service = request.app.state.service
    caller: Caller = request.state.caller
    settings = service.settings
    sender = Sender(caller.owner, caller.projects, admin=caller.may("admin"))
    try:
        json = _is_json(request)
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        # Before the body is read, so that bodies on their way count too.
        with service.writer.room() as grow:
            body = await bodies.read(
                request, settings.body_bytes_max, settings.body_seconds_max, grow
            )
            sent = Sent(body, encoding, json, sender)
            receipt, batch = await service.line.wait(sent, len(body), partial(_store, service))
    except Exception as error:
        service.metrics.refused(
            error.reason if isinstance(error, BodyRefused) else reason_of(error)
        )
        if isinstance(error, (Busy, Unreadable)):
            service.last_write.note(failed=True)
        raise
    service.metrics.took(len(batch.records), len(body))
    if receipt.changed:
        service.last_write.note(failed=False)
        service.publish(Advance(batch.run_id, receipt.ack.version, receipt.last_step))
        service.judge.note(batch.run_id)
    ack = msgspec.structs.replace(receipt.ack, watched=service.bus.listeners > 0)
    return Response(msgspec.json.encode(ack), media_type="application/json")


def _is_json(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and kind not in _MSGPACK:
        raise BodyRefused(
            "type", "Send a batch as application/msgpack or application/json.", field="Content-Type"
        )
    return kind == "application/json"


def _store(service: Service, sent: Sequence[Sent]) -> list[Stored | Exception]:
    """Decode and store bodies together, and return the outcome of each, in order."""
    batches = [_batch(service, each) for each in sent]
    good = [
        (batch, each.sender)
        for batch, each in zip(batches, sent, strict=True)
        if isinstance(batch, wire.Batch)
    ]
    outcomes = iter(service.store.ingest_together(good) if good else ())
    return [
        _stored(next(outcomes), each) if isinstance(each, wire.Batch) else each for each in batches
    ]


def _stored(outcome: Outcome, batch: wire.Batch) -> Stored | Exception:
    return outcome if isinstance(outcome, Exception) else (outcome, batch)


def _batch(service: Service, sent: Sent) -> wire.Batch | Exception:
    """Return the batch in a body, or the exception that decoding it raised."""
    try:
        body = unpacked(sent.body, sent.encoding, service.settings.decoded_bytes_max)
        return _decode(service, body, sent.json)
    except Exception as error:  # fails this body only, not the others
        return error


def unpacked(body: bytes, encoding: str, bytes_max: int) -> bytes:
    """Decompress a body. Stops at the size limit, so a decompression bomb does no harm. Raises BodyRefused."""
    bytes_max = min(bytes_max, _EASY_BYTES + _RATIO_MAX * len(body))
    try:
        if encoding == "gzip":
            unpacked = _gunzip(body, bytes_max)
        elif encoding == "zstd":
            decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX)
            with decompressor.stream_reader(body) as reader:
                unpacked = reader.read(bytes_max + 1)
        elif encoding == "identity":
            unpacked = body
        else:
            raise BodyRefused(
                "encoding",
                "Send the body uncompressed, or compressed with gzip or zstd.",
                "Content-Encoding",
            )
    except (zlib.error, zstandard.ZstdError) as error:
        raise BodyRefused("damaged", f"The body is not {encoding}: {error}") from None
    if len(unpacked) > bytes_max:
        raise BodyRefused("too_large", f"A batch holds at most {bytes_max} bytes when unpacked.")
    return unpacked


def _gunzip(body: bytes, bytes_max: int) -> bytes:
    decompressor = zlib.decompressobj(_GZIP)
    unpacked = decompressor.decompress(body, bytes_max + 1)
    if not decompressor.eof and len(unpacked) <= bytes_max:
        raise zlib.error("it is truncated")
    return unpacked


def _decode(service: Service, body: bytes, json: bool) -> wire.Batch:
    try:
        return decode_batch(body, json=json)
    except TooLarge as error:
        raise BodyRefused("too_large", str(error), error.field) from None
    except UnsupportedVersion as error:
        service.refusals.note(str(error))
        raise BodyRefused("version", str(error), "schema_version") from None
    except msgspec.ValidationError as error:
        raise BodyRefused("invalid", *fault(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        kind = "JSON" if json else "msgpack"
        raise BodyRefused("damaged", f"The body is not a batch in {kind}: {error}") from None
