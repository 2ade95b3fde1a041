"""The server behind a proxy that shows it under a path, and the checks of that path and of frame origins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from ampmon.errors import ConfigurationError
from ampmon_server.cli.serve_settings import base_path, frame_ancestors
from ampmon_server.http.app import create_app
from ampmon_server.settings import Settings
from serving import Server
from training import Trainer, stored


URL = "http://127.0.0.1:8267"
BASE = "/user/me/ampmon"


def test_addresses_are_the_same_below_a_path(tmp_path: Path) -> None:
    """Requests with and without the prefix are answered alike. The bare prefix redirects, and sign-in links have it."""
    app = create_app(Settings(data_directory=tmp_path, base_path=BASE, judging=False))
    with TestClient(app, base_url=URL, follow_redirects=False) as client:
        known = {"Authorization": f"Bearer {app.state.service.keys.token}"}
        assert client.get(f"{BASE}/api/v1/runs").status_code == 401
        for prefix in ("", BASE):
            assert client.get(f"{prefix}/api/v1/runs", headers=known).json()["runs"] == []
            assert client.get(f"{prefix}/", headers=known).text.startswith("<!doctype html>")
        assert client.get(f"{BASE}x/api/v1/runs", headers=known).status_code == 404
        assert client.get(BASE).headers["Location"] == f"{BASE}/"
        link = client.post("/api/v1/login-links", headers=known).json()["url"]
        assert link.startswith(f"{URL}{BASE}/login?code=")
        assert client.get(link).headers["Location"] == "./"


def test_trainings_print_the_address_with_the_path(
    data_directory: Path, new_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training prints the address that the server prints, and sends its records there."""
    monkeypatch.setenv("AMPMON_MODE", "online")
    server = new_server(data_directory, options=["--base-path", BASE])
    with Trainer() as trainer:
        trainer.train(1)
        assert f"{server.address}/#/runs/{trainer.run_id}" in trainer.finish()
    assert stored(server, trainer.run_id) == 1


def test_the_page_names_no_address_from_the_root() -> None:
    """No file of the page uses a URL that begins with a slash, which would miss the proxy's prefix."""
    web = Path(__file__).parents[2] / "web"
    files = [web / "index.html", *web.glob("js/*.js"), *web.glob("css/*.css")]
    found = [
        f"{path.name}: {line.strip()}"
        for path in files
        for line in path.read_text().splitlines()
        for start in ('src="/', 'href="/', 'action="/', 'fetch("/', "fetch(`/", 'url("/', "url(/")
        if start in line
    ]
    assert found == []


def test_paths_and_origins_are_checked() -> None:
    """Base paths and origins are normalised. Invalid ones are rejected with an example."""
    assert [base_path(each) for each in ("", "/", "/a/b/", "a@b.c")] == ["", "", "/a/b", "/a@b.c"]
    origins = ["https://hub.example/", "self", "http://localhost:8888", "https://*.example:*"]
    assert frame_ancestors(origins) == (
        "https://hub.example",
        "'self'",
        "http://localhost:8888",
        "https://*.example:*",
    )
    for path in ("/a//b", "/../x", "/a b", "/a;b", "http://x"):
        with pytest.raises(ConfigurationError, match="/user/me/ampmon"):
            base_path(path)
    for origin in ("*", "hub.example", "https://", "https://a;b", "https://a b", "https://a/x"):
        with pytest.raises(ConfigurationError, match=r"https://hub\.example"):
            frame_ancestors([origin])
