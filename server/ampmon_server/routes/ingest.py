"""Where records come in: reads and unpacks a body within its caps, hands the batch on, answers when it is stored."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping

import anyio
import msgspec
import zstandard
from fastapi import APIRouter, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from ampmon import wire
from ampmon_server.bus import Advance
from ampmon_server.metrics import Reason, reason_of
from ampmon_server.problems import problem, refusals
from ampmon_server.routes.answers import MetricsDependency, ServiceDependency
from ampmon_server.routes.callers import CallerDependency
from ampmon_server.service import Service
from ampmon_server.store import Receipt, Sender
from ampmon_server.writer import Room


router = APIRouter(prefix="/api/v1")

_MSGPACK = {"application/msgpack", "application/x-msgpack", "application/vnd.msgpack"}
_WINDOW_BYTES_MAX = 2**23
_GZIP = 16 + zlib.MAX_WBITS
_PATH = re.compile(r" - at `(?:key in )?\$\.?(.*?)`$")


_STATUS: Mapping[Reason, int] = {
    "damaged": 400,
    "encoding": 415,
    "gone": 400,
    "invalid": 422,
    "slow": 408,
    "too_large": 413,
    "type": 415,
    "version": 400,
}


class _Rejected(Exception):
    def __init__(self, reason: Reason, detail: str, field: str | None = None) -> None:
        super().__init__(detail)
        self.reason: Reason = reason
        self.answer = problem(_STATUS[reason], detail, field=field)


_BATCH = {"schema": {"$ref": "#/components/schemas/Batch"}}
_ACK = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Ack"}}}}
_DESCRIBED = {
    "requestBody": {
        "required": True,
        "description": "As msgpack, in which bytes are bytes, or as JSON, in which they are base64.",
        "content": {"application/msgpack": _BATCH, "application/json": _BATCH},
    }
}


@router.post(
    "/ingest",
    responses={200: _ACK, **refusals(400, 404, 408, 409, 413, 415)},
    openapi_extra=_DESCRIBED,
)
async def ingest(
    request: Request,
    service: ServiceDependency,
    metrics: MetricsDependency,
    caller: CallerDependency,
) -> Response:
    """Store a batch of records: msgpack or JSON, plain, gzip or zstd. Answers once it is committed."""
    sender = Sender(caller.owner, caller.projects)
    try:
        json = _is_json(request)
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        with service.writer.room() as room:
            body = await _read(request, service, room)
            receipt, batch = await service.writer.run(
                lambda: _store(service, body, encoding, json, sender)
            )
    except _Rejected as rejected:
        metrics.refused(rejected.reason)
        return rejected.answer
    except Exception as error:
        metrics.refused(reason_of(error))
        raise
    metrics.took(len(batch.records), len(body))
    if receipt.changed:
        service.bus.publish(Advance(batch.run_id, receipt.ack.version, receipt.last_step))
        service.judge.note(batch.run_id)
    return Response(msgspec.json.encode(receipt.ack), media_type="application/json")


def _is_json(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and kind not in _MSGPACK:
        raise _Rejected(
            "type", "A batch is application/msgpack or application/json.", field="Content-Type"
        )
    return kind == "application/json"


async def _read(request: Request, service: Service, room: Room) -> bytes:
    settings = service.settings
    too_large = _Rejected(
        "too_large", f"A body holds at most {settings.body_bytes_max} bytes.", "body"
    )
    announced = request.headers.get("content-length", "")
    if (
        announced.isascii()
        and announced.isdigit()
        and int(announced[:18]) > settings.body_bytes_max
    ):
        raise too_large
    body = bytearray()
    try:
        with anyio.fail_after(settings.body_seconds_max):
            async for chunk in request.stream():
                body += chunk
                if len(body) > settings.body_bytes_max:
                    raise too_large
                room.grow(len(chunk))
    except ClientDisconnect:  # a sender that was killed: the next one sends it again
        raise _Rejected("gone", "The client went away.", "body") from None
    except TimeoutError:
        raise _Rejected("slow", "The body did not arrive in time.", "body") from None
    return bytes(body)


def _store(
    service: Service, body: bytes, encoding: str, json: bool, sender: Sender
) -> tuple[Receipt, wire.Batch]:
    batch = _decode(service, _unpacked(body, encoding, service.settings.decoded_bytes_max), json)
    return service.store.ingest(batch, sender), batch


def _unpacked(body: bytes, encoding: str, bytes_max: int) -> bytes:
    """The body without its compression; a bomb is not unpacked beyond the cap."""
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
            raise _Rejected("encoding", "A body is plain, gzip or zstd.", "Content-Encoding")
    except (zlib.error, zstandard.ZstdError) as error:
        raise _Rejected("damaged", f"The body is not {encoding}: {error}", "body") from None
    if len(unpacked) > bytes_max:
        raise _Rejected(
            "too_large", f"A batch holds at most {bytes_max} bytes when unpacked.", "body"
        )
    return unpacked


def _gunzip(body: bytes, bytes_max: int) -> bytes:
    decompressor = zlib.decompressobj(_GZIP)
    unpacked = decompressor.decompress(body, bytes_max + 1)
    if not decompressor.eof and len(unpacked) <= bytes_max:
        raise zlib.error("it ends early")
    return unpacked


def _decode(service: Service, body: bytes, json: bool) -> wire.Batch:
    try:
        return wire.decode_batch(body, json=json)
    except wire.UnsupportedVersion as error:
        service.refusals.note(str(error))
        raise _Rejected("version", str(error), "schema_version") from None
    except msgspec.ValidationError as error:
        words = str(error)
        path = _PATH.search(words)
        raise _Rejected("invalid", words, path[1] if path else "body") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        kind = "JSON" if json else "msgpack"
        raise _Rejected("damaged", f"The body is not a batch in {kind}: {error}", "body") from None
