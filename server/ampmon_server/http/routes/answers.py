"""Responses of many routes: JSON and files with a hash of their bytes as ETag, and alerts in JSON.

Both are compressed if the client accepts it, in the request's thread. A middleware would do it in the event loop's.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import lru_cache
from mimetypes import guess_type
from pathlib import Path
from typing import Any, TypeAlias

import orjson
import zstandard
from fastapi import Request
from starlette.responses import Response

from ampmon_server.alerting.delivery import words
from ampmon_server.store import DeliveryState, RunAlerts


_COMPRESSED_FROM = 1024
"""Bytes. A smaller body fits into one packet anyway."""
_GZIP_LEVEL = 4
"""Shrinks figures to two fifths in a few ms. A higher level takes twice as long to save a tenth more."""
_ZSTD_LEVEL = 1
"""Shrinks figures as much as gzip, in an eighth of its time. A higher level saves nothing."""

Packers: TypeAlias = Mapping[str, Callable[[], bytes]]
"""Functions that compress a body, by encoding, the best first."""


def json_answer(value: object, *, status: int = 200) -> Response:
    """Return plain data, dataclasses or arrays as JSON. Numbers that are not finite become null."""
    body = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, media_type="application/json")


def tagged_json(value: object, request: Request) -> Response:
    """Return JSON with its hash as ETag, or 304 if the client has the same."""
    answer = json_answer(value)
    body = bytes(answer.body)
    tag = f'"{hashlib.blake2b(body, digest_size=16).hexdigest()}"'
    packers: Packers = {
        "zstd": lambda: zstandard.ZstdCompressor(_ZSTD_LEVEL).compress(body),
        "gzip": lambda: gzip.compress(body, _GZIP_LEVEL, mtime=0),
    }
    return _tagged(answer, tag, request, packers if len(body) >= _COMPRESSED_FROM else {})


def file_answer(path: Path, request: Request, cache: str = "no-cache") -> Response:
    """Return a file, or 304 if the client has it."""
    kind = guess_type(path.name)[0] or "text/plain"
    return content_answer(path.read_bytes(), kind, request, cache)


def content_answer(
    content: bytes, kind: str, request: Request, cache: str = "no-cache"
) -> Response:
    """Return a file's content, or 304 if the client has it."""
    packers: Packers = {
        "zstd": lambda: _packed_content(content, "zstd"),
        "gzip": lambda: _packed_content(content, "gzip"),
    }
    if len(content) < _COMPRESSED_FROM or kind.startswith("image/"):
        packers = {}
    return _tagged(Response(content, media_type=kind), _tag_of(content), request, packers, cache)


@lru_cache(maxsize=128)
def _tag_of(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


@lru_cache(maxsize=128)
def _packed_content(content: bytes, encoding: str) -> bytes:
    """Compress a file. There are a few dozen. Higher levels take twice as long to save a hundredth more."""
    if encoding == "zstd":
        return zstandard.ZstdCompressor(8).compress(content)
    return gzip.compress(content, 6, mtime=0)


def _tagged(
    answer: Response, tag: str, request: Request, packers: Packers, cache: str = "no-cache"
) -> Response:
    """The answer, compressed by the first of ``packers`` that the client takes; 304 if it has the same."""
    held = request.headers.get("if-none-match", "").split(",")
    takes = request.headers.get("accept-encoding", "").lower().replace(" ", "").split(",")
    encoding = next((each for each in packers if each in takes), None)
    if tag in {each.strip().removeprefix("W/") for each in held}:
        answer = Response(status_code=304)
    elif encoding is not None:
        headers = {"Content-Encoding": encoding}
        answer = Response(packers[encoding](), headers=headers, media_type=answer.media_type)
        tag = f"W/{tag}"  # weak: the same content in other bytes
    answer.headers["ETag"] = tag
    answer.headers["Vary"] = "Accept-Encoding"
    answer.headers["Cache-Control"] = cache
    return answer


def standings_json(stand: RunAlerts) -> list[dict[str, Any]]:
    """Return a run's alerts as its page shows them, each with its newest mute and its deliveries since it fired."""
    return [
        {
            "rule": rule,
            "title": found.title,
            **asdict(alert),
            "mute": next((mute for mute in stand.mutes if mute.rule in {None, rule}), None),
            "deliveries": [
                delivery_json(each)
                for each in stand.deliveries
                if each.rule == rule and each.made >= (alert.fired or 0)
            ],
        }
        for rule, (alert, found) in stand.alerts.items()
    ]


def delivery_json(each: DeliveryState) -> dict[str, Any]:
    return {
        "target": each.target,
        "sent": each.sent,
        "due": each.due,
        "attempts": each.attempts,
        "trouble": words(each.trouble, each.status) if each.trouble else None,
    }
