"""Tokens that a benchmark makes and revokes, as `ampmon token` does: by the server's own routes."""

from __future__ import annotations

import json
from collections.abc import Sequence

import urllib3


def make(
    url: str, token: str, name: str, scopes: Sequence[str] = ("ingest",), owner: str = ""
) -> str:
    """A new token, of whoever bears the name if no other ``owner`` is given. ``token`` is the server's own."""
    wanted = {"name": name, "owner": owner or name, "scopes": scopes}
    answer = _asked("POST", f"{url}/api/v1/tokens", token, 201, json=wanted)
    return str(json.loads(answer.data)["token"])


def revoke(url: str, token: str, name: str) -> None:
    """Let a token of this name be good no more."""
    _asked("DELETE", f"{url}/api/v1/tokens/{name}", token, 204)


def _asked(
    method: str, url: str, token: str, status: int, **more: object
) -> urllib3.BaseHTTPResponse:
    headers = {"Authorization": f"Bearer {token}"}
    with urllib3.PoolManager(retries=False) as http:
        answer = http.request(method, url, headers=headers, **more)  # type: ignore[arg-type]
    assert answer.status == status, (method, answer.status, answer.data[:500])
    return answer
