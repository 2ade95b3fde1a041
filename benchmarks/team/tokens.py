"""Creates and revokes tokens for a benchmark through the server's routes, as `ampmon token` does."""

from __future__ import annotations

import json
from collections.abc import Sequence

import urllib3


def make(
    url: str, token: str, name: str, scopes: Sequence[str] = ("ingest",), owner: str = ""
) -> str:
    """Create a token. Its owner is ``name`` if no ``owner`` is given. ``token`` is the server's own."""
    wanted = {"name": name, "owner": owner or name, "scopes": scopes}
    answer = _asked("POST", f"{url}/api/v1/tokens", token, 201, json=wanted)
    return str(json.loads(answer.data)["token"])


def revoke(url: str, token: str, name: str) -> None:
    """Revoke the token of this name."""
    _asked("DELETE", f"{url}/api/v1/tokens/{name}", token, 204)


def _asked(
    method: str, url: str, token: str, status: int, **more: object
) -> urllib3.BaseHTTPResponse:
    headers = {"Authorization": f"Bearer {token}"}
    with urllib3.PoolManager(retries=False) as http:
        answer = http.request(method, url, headers=headers, **more)  # type: ignore[arg-type]
    assert answer.status == status, (method, answer.status, answer.data[:500])
    return answer
