"""Cross-origin requests: no other site may read anything unless its origin is allowed, and then only with a token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from ampmon.errors import ConfigurationError
from ampmon_server.cli.serve_settings import origins
from ampmon_server.http.app import create_app
from ampmon_server.settings import Settings


NAMED, OTHER = "https://hub.example", "https://evil.example"
URL = "http://127.0.0.1:8267"


def preflight(client: TestClient, path: str, origin: str) -> tuple[int, set[str]]:
    """Status of a preflight request, and the CORS headers of its answer."""
    asked = {
        "Origin": origin,
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Headers": "authorization",
    }
    answer = client.options(path, headers=asked)
    return answer.status_code, {
        f"{name}: {value}" for name, value in answer.headers.items() if "access-control" in name
    }


def test_nobody_may_unless_named(app: FastAPI, client: TestClient, stranger: TestClient) -> None:
    """By default no route answers a preflight, with or without a token, and no answer has CORS headers."""
    for path in {str(getattr(route, "path")) for route in app.routes}:  # noqa: B009
        for each in (client, stranger):
            status, allowed = preflight(each, path.replace("{", "").replace("}", ""), NAMED)
            assert status >= 400
            assert allowed == set()
    for path in ("/api/v1/runs", "/", "/api/v1/proof"):
        headers = client.get(path, headers={"Origin": NAMED}).headers
        assert not [name for name in headers if "access-control" in name]


@pytest.fixture
def opened(settings: Settings) -> Iterator[FastAPI]:
    """A server that allows one other origin."""
    app = create_app(replace(settings, allowed_origins=(NAMED,)))
    with TestClient(app, base_url=URL):
        yield app


def test_who_is_named_may_ask_with_a_token(opened: FastAPI) -> None:
    """An allowed origin may read with a token, but not delete with a cookie; other origins get no permission."""
    keys = opened.state.service.keys
    client = TestClient(opened, base_url=URL)
    status, allowed = preflight(client, "/api/v1/runs", NAMED)
    assert status == 200
    assert f"access-control-allow-origin: {NAMED}" in allowed
    assert not [each for each in allowed if "credentials" in each]
    assert preflight(client, "/api/v1/runs", OTHER)[0] == 400
    assert not [each for each in preflight(client, "/", OTHER)[1] if "allow-origin" in each]

    token = {"Authorization": f"Bearer {keys.token}"}
    read = client.get("/api/v1/runs", headers={"Origin": NAMED, **token})
    assert (read.status_code, read.headers["Access-Control-Allow-Origin"]) == (200, NAMED)
    assert client.get("/api/v1/runs", headers={"Origin": NAMED}).status_code == 401
    other = client.get("/api/v1/runs", headers={"Origin": OTHER, **token})
    assert "Access-Control-Allow-Origin" not in other.headers

    client.cookies.set(keys.cookie_name, keys.sign("cookie"))
    path = "/api/v1/runs/01900000-0000-7000-8000-000000000000"
    assert client.delete(path, headers={"Origin": NAMED}).status_code == 403


@pytest.mark.parametrize(
    "given", ["*", "https://*.example", "hub.example", "null", "https://hub.example/"]
)
def test_an_origin_is_one(given: str) -> None:
    """--allow-origin rejects a pattern, a path, a bare host name and null."""
    with pytest.raises(ConfigurationError, match="--allow-origin"):
        origins([given])
