"""Responses of many routes: JSON and files with a hash of their bytes as ETag, and alerts in JSON.

Both are compressed if the client accepts it, in the request's thread. A middleware would do it in the event loop's.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from mimetypes import guess_type
from pathlib import Path
from typing import Any

import orjson
import zstandard
from fastapi import Request
from starlette.responses import Response

from ampmon_server.alerting.delivery import words
from ampmon_server.store import DeliveryState, RunAlerts


_COMPRESSED_FROM = 1024
"""Bytes. A smaller body fits into one packet anyway."""
_ENCODINGS = ("zstd", "gzip")
"""The best first: zstd shrinks figures as much as gzip, in an eighth of its time."""


def json_answer(value: object, *, status: int = 200) -> Response:
    """Return plain data, dataclasses or arrays as JSON. Numbers that are not finite become null."""
    body = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, media_type="application/json")


def tagged_json(value: object, request: Request) -> Response:
    """Return JSON with its hash as ETag, or 304 if the client has the same."""
    body = bytes(json_answer(value).body)
    tag = f'"{hashlib.blake2b(body, digest_size=16).hexdigest()}"'
    return _tagged(body, "application/json", tag, request, _packed)


def file_answer(path: Path, request: Request, cache: str = "no-cache") -> Response:
    """Return a file, or 304 if the client has it."""
    kind = guess_type(path.name, strict=False)[0] or "text/plain"
    return content_answer(path.read_bytes(), kind, request, cache)


def content_answer(
    content: bytes, kind: str, request: Request, cache: str = "no-cache"
) -> Response:
    """Return a file's content, or 304 if the client has it."""
    return _tagged(content, kind, _tag_of(content), request, _packed_file, cache)


@lru_cache(maxsize=128)
def _tag_of(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def _packed(body: bytes, encoding: str, zstd_level: int = 1, gzip_level: int = 4) -> bytes:
    """Compress a body. These levels shrink figures to two fifths in a few ms; higher ones hardly save more."""
    if encoding == "zstd":
        return zstandard.ZstdCompressor(zstd_level).compress(body)
    return gzip.compress(body, gzip_level, mtime=0)


@lru_cache(maxsize=128)
def _packed_file(content: bytes, encoding: str) -> bytes:
    """Compress one of a few dozen files. Higher levels take twice as long to save a hundredth more."""
    return _packed(content, encoding, 8, 6)


def _tagged(
    body: bytes,
    kind: str,
    tag: str,
    request: Request,
    pack: Callable[[bytes, str], bytes],
    cache: str = "no-cache",
) -> Response:
    """The body, compressed by ``pack`` if the client takes it and it shrinks; 304 if the client has the same."""
    held = request.headers.get("if-none-match", "").split(",")
    takes = request.headers.get("accept-encoding", "").lower().replace(" ", "").split(",")
    shrinks = len(body) >= _COMPRESSED_FROM and not kind.startswith("image/")
    encoding = next((each for each in _ENCODINGS if shrinks and each in takes), None)
    headers = {"Vary": "Accept-Encoding", "Cache-Control": cache}
    headers["ETag"] = f"W/{tag}" if encoding else tag  # weak: the same content in other bytes
    if tag in {each.strip().removeprefix("W/") for each in held}:
        return Response(status_code=304, headers=headers)
    if encoding:
        body, headers["Content-Encoding"] = pack(body, encoding), encoding
    return Response(body, media_type=kind, headers=headers)


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
