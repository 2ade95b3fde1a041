"""Answers that many routes give: JSON, tagged by a hash of its bytes, and files, tagged by their date and size."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import orjson
from fastapi import Depends, Request
from starlette.responses import FileResponse, Response

from ampmon_server.service import Service


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceDependency = Annotated[Service, Depends(_service)]


def json_answer(value: object, *, status: int = 200) -> Response:
    """JSON of plain data, dataclasses or arrays; what is not finite becomes null."""
    body = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, media_type="application/json")


def tagged_json(value: object, request: Request) -> Response:
    """JSON with a hash of itself as ETag, or 304 where the client holds the same."""
    answer = json_answer(value)
    tag = f'"{hashlib.blake2b(answer.body, digest_size=16).hexdigest()}"'
    return _unless_held(answer, tag, request)


def file_answer(path: Path, request: Request, cache: str = "no-cache") -> Response:
    """A file, or 304 where the client holds it."""
    stat = path.stat()
    answer = FileResponse(path, stat_result=stat, headers={"Cache-Control": cache})
    return _unless_held(answer, f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"', request)


def _unless_held(answer: Response, tag: str, request: Request) -> Response:
    answer.headers["ETag"] = tag
    held = request.headers.get("if-none-match", "")
    if tag not in {each.strip().removeprefix("W/") for each in held.split(",")}:
        return answer
    kept = {
        name: answer.headers[name] for name in ("etag", "cache-control") if name in answer.headers
    }
    return Response(status_code=304, headers=kept)
