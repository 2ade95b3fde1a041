"""Answers that many routes give: JSON, tagged by a hash of its bytes, and files, tagged by their date and size.

Both are compressed for who takes that, in the thread of the request: a middleware would do it in the event loop's.
"""

from __future__ import annotations

import gzip
import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
import orjson
import zstandard
from fastapi import Depends, Request
from starlette.responses import FileResponse, Response

from ampmon_server.http.metrics import Metrics
from ampmon_server.http.service import Service


_COMPRESSED_FROM = 1024
"""Bytes: less is one packet either way."""
_GZIP_LEVEL = 4
"""Figures shrink to two fifths in a few ms; more takes twice as long for a tenth less."""
_ZSTD_LEVEL = 1
"""Figures shrink as by gzip, in an eighth of its time; more saves nothing."""


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceDependency = Annotated[Service, Depends(_service)]


async def _metrics(request: Request) -> Metrics:
    metrics: Metrics = request.app.state.metrics
    return metrics


MetricsDependency = Annotated[Metrics, Depends(_metrics)]


def takes(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """What a route whose body is this struct as JSON adds to its entry in the OpenAPI document."""
    _, schemas = msgspec.json.schema_components([kind], ref_template="{name}")
    (schema,) = schemas.values()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def json_answer(value: object, *, status: int = 200) -> Response:
    """JSON of plain data, dataclasses or arrays; what is not finite becomes null."""
    body = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, media_type="application/json")


def tagged_json(value: object, request: Request) -> Response:
    """JSON with a hash of itself as ETag, or 304 where the client holds the same."""
    answer = json_answer(value)
    tag = f'"{hashlib.blake2b(answer.body, digest_size=16).hexdigest()}"'
    if _is_held(tag, request):
        return _held(tag)
    if len(answer.body) < _COMPRESSED_FROM:
        return _tagged(answer, tag)
    if _takes("zstd", request):
        packed = zstandard.ZstdCompressor(_ZSTD_LEVEL).compress(answer.body)
        answer = _compressed("zstd", packed, "application/json")
    elif _takes("gzip", request):
        packed = gzip.compress(answer.body, _GZIP_LEVEL, mtime=0)
        answer = _compressed("gzip", packed, "application/json")
    return _tagged(answer, tag)


def file_answer(path: Path, request: Request, cache: str = "no-cache") -> Response:
    """A file, or 304 where the client holds it."""
    stat = path.stat()
    tag = f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"'
    if _is_held(tag, request):
        return _held(tag, cache)
    answer: Response = FileResponse(path, stat_result=stat)
    is_text = answer.media_type is not None and not answer.media_type.startswith("image/")
    if is_text and _takes("gzip", request) and stat.st_size >= _COMPRESSED_FROM:
        answer = _compressed("gzip", _gzipped_file(path, stat.st_mtime_ns), answer.media_type)
    answer.headers["Cache-Control"] = cache
    return _tagged(answer, tag)


def content_answer(
    content: bytes, kind: str, request: Request, cache: str = "no-cache"
) -> Response:
    """A file that is held in memory, or 304 where the client holds it."""
    tag = _tag_of(content)
    if _is_held(tag, request):
        return _held(tag, cache)
    answer = (
        _compressed("gzip", _gzipped_content(content), kind)
        if _takes("gzip", request)
        else Response(content, media_type=kind)
    )
    answer.headers["Cache-Control"] = cache
    return _tagged(answer, tag)


@lru_cache(maxsize=2)
def _tag_of(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


@lru_cache(maxsize=2)
def _gzipped_content(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


@lru_cache(maxsize=128)
def _gzipped_file(path: Path, _changed: int) -> bytes:
    """One of the page's own files, of which there are a few dozen."""
    return gzip.compress(path.read_bytes(), mtime=0)


def _compressed(encoding: str, body: bytes, media_type: str | None) -> Response:
    return Response(body, headers={"Content-Encoding": encoding}, media_type=media_type)


def _takes(encoding: str, request: Request) -> bool:
    takes = request.headers.get("accept-encoding", "").lower().replace(" ", "").split(",")
    return encoding in takes


def _tagged(answer: Response, tag: str) -> Response:
    # Weak where it is compressed: the same content in other bytes.
    answer.headers["ETag"] = f"W/{tag}" if "Content-Encoding" in answer.headers else tag
    answer.headers["Vary"] = "Accept-Encoding"
    return answer


def _is_held(tag: str, request: Request) -> bool:
    held = request.headers.get("if-none-match", "")
    return tag in {each.strip().removeprefix("W/") for each in held.split(",")}


def _held(tag: str, cache: str | None = None) -> Response:
    headers = {"ETag": tag, "Vary": "Accept-Encoding"}
    return Response(
        status_code=304, headers=headers if cache is None else {**headers, "Cache-Control": cache}
    )
