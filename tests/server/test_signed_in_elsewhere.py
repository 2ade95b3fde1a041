"""Users who signed in at a proxy: trusted from that proxy alone, and only if the server is configured to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from fastapi import FastAPI
from httpx2 import Response
from starlette.testclient import TestClient

from ampmon_server.http.app import create_app
from ampmon_server.settings import Settings
from ampmon_server.store import Sender
from batches import Trainer
from warm import completed


PROXY, STRANGER = "192.0.2.7", "192.0.2.8"
URL = "http://ampmon.example"
HEADER = "X-Forwarded-User"


@pytest.fixture
def behind(settings: Settings) -> Settings:
    """Settings of a server behind a proxy that vouches for users."""
    return replace(
        settings,
        behind_proxy=(PROXY,),
        allowed_hosts=("ampmon.example",),
        user_header=HEADER,
        user_projects=("vision",),
    )


@pytest.fixture
def app(behind: Settings) -> Iterator[FastAPI]:
    app = create_app(behind)
    with TestClient(app):
        yield app


def ask(
    app: FastAPI,
    *names: str,
    peer: str = PROXY,
    path: str = "/api/v1/runs",
    method: str = "GET",
    headers: Sequence[tuple[str, str]] = (),
) -> Response:
    """Send a request from ``peer`` with these names in the user header."""
    sent = [("X-Forwarded-Proto", "https"), *((HEADER, name) for name in names), *headers]
    return TestClient(app, base_url=URL, client=(peer, 50000)).request(
        method, path, headers=sent, json={} if method == "PATCH" else None
    )


def trained(app: FastAPI, project: str, owner: str) -> UUID:
    trainer = Trainer(uuid4(), project=project)
    app.state.service.store.ingest(trainer.batch(trainer.updates(2)), Sender(owner))
    return trainer.run_id


def test_who_the_proxy_vouches_for_is_let_in(app: FastAPI) -> None:
    """A proxy's user sees the allowed projects, and changes only their own runs, from the page's own origin."""
    mine, hers = trained(app, "vision", "ada"), trained(app, "vision", "eve")
    trained(app, "speech", "ada")
    origin = [("Origin", "https://ampmon.example")]

    def change(run: UUID, *headers: tuple[str, str]) -> int:
        path = f"/api/v1/runs/{run}"
        return ask(app, "ada", path=path, method="PATCH", headers=headers).status_code

    assert ask(app, "ada", path="/api/v1/me").json()["signed_in_elsewhere"] is True
    assert ask(app, "ada").json()["total"] == 2
    assert change(mine) == 403
    assert change(mine, ("Origin", "https://evil.example")) == 403
    assert (change(mine, *origin), change(hers, *origin)) == (200, 403)
    assert ask(app, "ada", path="/api/v1/tokens").status_code == 403
    assert (
        ask(app, "ada", path="/api/v1/login-links", method="POST", headers=origin).status_code
        == 403
    )


@pytest.mark.parametrize("peer", [STRANGER, "127.0.0.1", "::1", "testclient"])
def test_nobody_else_is_believed(app: FastAPI, peer: str) -> None:
    """The user header of another machine or of an unnamed local program lets nobody in."""
    assert ask(app, "ada", peer=peer).status_code in {401, 403}


@pytest.mark.parametrize(
    "names",
    [
        [],
        [""],
        ["ada", "eve"],
        ["ada", "ada"],
        ["ada, eve"],
        [" "],
        ["ada\x01"],
        ["ada\x7f"],
        ["ada	eve"],
        ["x" * 257],
    ],
)
def test_a_name_that_is_none_lets_nobody_in(app: FastAPI, names: list[str]) -> None:
    """A missing, repeated, empty, overlong or malformed user name gets a 401."""
    assert ask(app, *names).status_code == 401


def test_a_token_goes_before_the_header(app: FastAPI) -> None:
    """A token, right or wrong, takes precedence over the user header. A proxy's own sign-in does not."""
    secret, _ = app.state.service.tokens.new("ci", "grace", ["read"])
    trained(app, "speech", "ada")
    trained(app, "vision", "ada")
    token = [("Authorization", f"Bearer {secret}")]

    assert ask(app, "ada", headers=token).json()["total"] == 2
    assert ask(app, "ada", headers=[("Authorization", "Bearer wrong")]).status_code == 401
    assert ask(app, "ada", headers=[("Authorization", "Basic YWRhOnB3")]).json()["total"] == 1


def test_no_proxy_is_trusted_unless_configured(behind: Settings) -> None:
    """Without the setting the user header means nothing."""
    app = create_app(replace(behind, user_header=None))
    with TestClient(app):
        assert ask(app, "ada").status_code == 401


def test_news_go_to_those_signed_in(app: FastAPI) -> None:
    """The event stream of a proxy's user covers only the projects that they see."""
    mine, hidden = trained(app, "vision", "ada"), trained(app, "speech", "ada")
    app.state.service.bus.close()
    text = ask(app, "ada", path="/api/v1/live").text

    assert str(mine) in text
    assert str(hidden) not in text


def test_without_a_named_proxy_it_does_not_start(tmp_path: Path) -> None:
    """--trust-user-header without --behind-proxy, or with an invalid header name, is refused in one line."""
    for flags, says in (
        (["--trust-user-header", HEADER], "--behind-proxy"),
        (["--trust-user-header", "a b", "--behind-proxy", "::1"], "such as X-Forwarded-User"),
    ):
        done = completed(["serve", "--port", "0", "--data-dir", str(tmp_path), *flags])
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert says in done.stderr


def test_a_proxy_of_this_machine_is_asked_over_tls_too(behind: Settings) -> None:
    """A local proxy sends a user name and https exactly once; a local program with a token sends neither."""
    app = create_app(replace(behind, behind_proxy=("127.0.0.1",)))

    def code(*headers: tuple[str, str]) -> int:
        client = TestClient(app, base_url=URL, client=("127.0.0.1", 50000))
        return client.get("/api/v1/runs", headers=list(headers)).status_code

    name, https, http = (
        (HEADER, "ada"),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-Proto", "http"),
    )
    with TestClient(app):
        token = ("Authorization", f"Bearer {app.state.service.keys.token}")
        assert code(name, https) == 200
        assert [code(name), code(name, http), code(name, https, https), code(token, http)] == [
            403
        ] * 4
        assert code(token) == 200
