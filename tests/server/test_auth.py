"""No route answers a request without a valid token or cookie, however the request is spelled."""

from __future__ import annotations

import asyncio
import re
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from httpx2 import Response
from sqlalchemy import text
from sqlalchemy.event import listen
from starlette.datastructures import Headers
from starlette.routing import BaseRoute
from starlette.testclient import TestClient
from starlette.types import Message

from ampmon.errors import ConfigurationError
from ampmon.transport.proof import PROOF_PATH
from ampmon_server.http.app import create_app
from ampmon_server.http.auth import guard
from ampmon_server.http.auth.access import OWN as OWN_TOKEN
from ampmon_server.http.auth.access import Caller
from ampmon_server.http.auth.callers import Callers
from ampmon_server.http.auth.guard import security_headers
from ampmon_server.http.auth.keys import SECONDS, Keys
from ampmon_server.http.auth.tokens import KNOWN_S, Sessions, Tokens
from ampmon_server.settings import Settings
from ampmon_server.store import Store, access
from doubles import ManualClock
from exact import ask, ask_each
from statements import statements


METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE")
OWN = "http://127.0.0.1:8267"
RUN = "01900000-0000-7000-8000-000000000000"
OPEN = {"/login", PROOF_PATH}
"""Signing in and the server's proof of identity need no authentication."""


@pytest.fixture(autouse=True)
def _nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests send thousands of unauthenticated requests. test_limits.py tests their throttling."""
    monkeypatch.setattr(guard, "STRANGERS_WAIT_S", 0.0)


def paths(app: FastAPI, method: str) -> list[str]:
    """All paths of the app's routes except open ones, for GET and POST with odd spellings of each."""
    plain = [path_of(route) for route in app.routes]
    assert {"/api/v1/ingest", "/api/v1/live", "/healthz", "/", "/login"} <= set(plain)
    if method not in {"GET", "POST"}:
        return [path for path in plain if path not in OPEN]
    odd = [
        spelling
        for path in plain
        for spelling in (
            f"{path}/",
            f"/{path}",
            f"/.{path}",
            f"/login/..{path}",
            f"/login{path}",
            f"/login/%2e%2e{path}",
            path.upper(),
            f"{path}\0",
            path[1:],
        )
    ]
    others = [
        "",
        "*",
        "/docs",
        "/redoc",
        "/metrics",
        "/js/1/../../css/1/base.css",
        "/js/1/%2e%2e/index.html",
    ]
    return [path for path in (*plain, *odd, *others) if path not in OPEN]


def path_of(route: BaseRoute) -> str:
    path = str(getattr(route, "path"))  # noqa: B009 - mounts and routes both have one
    for name, value in (
        ("run_id", RUN),
        ("version", "1"),
        ("name", "main.js"),
        ("name:path", "index.html"),
    ):
        path = path.replace(f"{{{name}}}", value)
    return path


def tokens(keys: Keys) -> list[str]:
    right = keys.token
    session = keys.sign("session")
    return [
        keys.sign("cookie"),
        session[:-1],
        f"9{session}",
        keys.sign("session", now=0.0),
        "",
        "wrong",
        right[:-1],
        right + "x",
        right.swapcase(),
        "\udcff" * 4,
    ]


def test_every_route_is_flat(app: FastAPI) -> None:
    """The app's own list holds all routes."""
    assert all(hasattr(route, "path") for route in app.routes)
    assert len([route for route in app.routes if isinstance(route, APIRoute)]) > 15


@pytest.mark.usefixtures("stranger")
def test_nothing_is_said_to_a_stranger(app: FastAPI) -> None:
    """Without a token, every route, method and spelling gives the same 401."""
    for method in METHODS:
        _, _, refusal = ask(app, method, "/api/v1/runs")
        for path, (status, headers, body) in ask_each(app, method, paths(app, method)).items():
            assert (status, body) == (401, refusal), (method, path)
            assert b"www-authenticate" in headers


@pytest.mark.usefixtures("stranger")
def test_logging_in_has_two_methods(app: FastAPI) -> None:
    """The open routes answer 401 to methods other than GET and POST, and the proof route to POST too."""
    for method in set(METHODS) - {"GET", "POST"}:
        assert [ask(app, method, path)[0] for path in OPEN] == [401, 401], method
    assert ask(app, "POST", PROOF_PATH)[0] == 401


FRAMED = Settings(frame_ancestors=("https://hub.example",))
SHELL = re.compile(
    r"/+|/roles\.json|/(css|js)/[^/]+/[^/]+|/(vendor|findings)/[^/]+|/docs(/.*)?|/findings"
)


@pytest.fixture
def framed(tmp_path: Path) -> Iterator[FastAPI]:
    """An app that one other site may show in a frame."""
    app = create_app(replace(FRAMED, data_directory=tmp_path / "framed", judging=False))
    with TestClient(app, base_url=OWN):
        yield app


def test_in_a_frame_a_stranger_gets_the_shell_alone(framed: FastAPI) -> None:
    """Where frames are allowed, anyone may GET the page's own files. All else gives the same 401."""
    opened = set()
    for method in METHODS:
        _, _, refusal = ask(framed, method, "/api/v1/runs")
        for path, (status, _, body) in ask_each(framed, method, paths(framed, method)).items():
            if (status, body) != (401, refusal):
                assert method == "GET", path
                assert SHELL.fullmatch(path), path
                opened.add(path)
    assert {"/", "/js/1/main.js", "/roles.json"} <= opened


def test_who_may_frame_stands_in_the_policy() -> None:
    """The headers forbid all framing without configured ancestors, and otherwise allow only those."""
    assert "frame-ancestors 'none'" in security_headers()["Content-Security-Policy"]
    assert security_headers()["X-Frame-Options"] == "DENY"
    framed = security_headers(["'self'", "https://hub.example"])
    assert "frame-ancestors 'self' https://hub.example;" in framed["Content-Security-Policy"]
    assert "X-Frame-Options" not in framed


@pytest.mark.usefixtures("stranger")
def test_websockets_are_turned_away(app: FastAPI) -> None:
    """The server closes a websocket before it opens."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    asyncio.run(app({"type": "websocket", "path": "/", "headers": []}, receive, send))

    assert sent == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.usefixtures("stranger")
def test_no_other_token_opens(app: FastAPI) -> None:
    """A wrong, truncated, lengthened or empty token, or another scheme, gives 401 on every route."""
    keys = app.state.service.keys
    wrong = [f"Bearer {token}".encode("utf-8", "surrogateescape") for token in tokens(keys)]
    wrong += [keys.token.encode(), f"Basic {keys.token}".encode(), b"Bearer"]
    routed = [path_of(route) for route in app.routes if path_of(route) not in OPEN]
    for value in wrong:
        for path, (status, _, _) in ask_each(app, "GET", routed, authorization=value).items():
            assert status == 401, (path, value)


def test_a_browser_gets_words(stranger: TestClient) -> None:
    """A navigation without a cookie or with a used link gets a self-contained page with the reason and what to do."""
    for path, why in (("/", "Sign in to ampmon"), ("/login?code=used", "was used or has")):
        answer = stranger.get(path, headers={"Accept": "text/html"})
        assert answer.status_code == 401
        assert f"{why}" in answer.text
        assert "<code>ampmon token link</code>" in answer.text
        assert "--background: #" in answer.text
        assert not re.findall(r"<script|src=|href=(?!.data:)", answer.text)


def test_every_answer_carries_the_policy(client: TestClient, stranger: TestClient) -> None:
    """Pages, data, refusals and errors all carry the security headers."""
    answers = [client.get("/"), client.get("/api/v1/runs"), client.get("/nope"), stranger.get("/")]

    for answer in answers:
        policy = security_headers()
        assert {name: answer.headers.get(name) for name in policy} == policy


FOREIGN = (
    "evil.example",
    "127.0.0.1.evil.example",
    "localhost.evil:8267",
    "",
    "[::2]",
    "a@b",
    "127.0.0.1:80@evil.example",
    "127.0.0.1:80,evil.example",
    "[::1].evil.example",
)
OWN_NAMES = ("localhost", "LOCALHOST:9000", "[::1]:8267", "127.0.0.1")


def test_a_foreign_host_is_refused(client: TestClient) -> None:
    """A foreign Host gives 421 even with a token. Loopback names work with any port."""
    for host in FOREIGN:
        assert client.get("/api/v1/runs", headers={"Host": host}).status_code == 421, host
    for host in OWN_NAMES:
        assert client.get("/api/v1/runs", headers={"Host": host}).status_code == 200, host


def log_in(stranger: TestClient, client: TestClient) -> None:
    url = client.post("/api/v1/login-links").json()["url"]
    answer = stranger.get(url)
    assert (answer.status_code, answer.headers["Location"]) == (303, "./")
    assert_is_cookie(answer.headers["Set-Cookie"])


def assert_is_cookie(cookie: str) -> None:
    """Scripts and other sites cannot use the cookie, and it is limited to its own directory."""
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "path" not in cookie.lower()


def test_a_one_time_link_lets_one_browser_in(stranger: TestClient, client: TestClient) -> None:
    """A link gives one browser a cookie. A second browser gets 401."""
    url = client.post("/api/v1/login-links").json()["url"]
    other = TestClient(client.app, base_url=str(client.base_url), follow_redirects=False)
    first, second = stranger.get(url), other.get(url)

    assert (first.status_code, second.status_code) == (303, 401)
    assert stranger.get("/api/v1/runs").status_code == 200
    assert other.get("/api/v1/runs").status_code == 401
    assert stranger.get(url).status_code == 303  # the browser already has its cookie


def test_looking_at_a_link_does_not_use_it_up(stranger: TestClient, client: TestClient) -> None:
    """A HEAD request, as link previews send, gives no cookie and leaves the code valid."""
    url = client.post("/api/v1/login-links").json()["url"]

    assert stranger.head(url).status_code == 401
    assert stranger.get(url).status_code == 303


def test_a_cookie_writes_only_from_its_own_page(stranger: TestClient, client: TestClient) -> None:
    """A write with a cookie needs this server's Origin. A write with a token needs none."""
    log_in(stranger, client)
    path = f"/api/v1/runs/{RUN}"
    origins = [
        None,
        "null",
        "http://evil.example",
        "http://127.0.0.1:9999",
        "http://127.0.0.1:8267",
    ]
    answers = [
        stranger.delete(path, headers={"Origin": origin} if origin else {}).status_code
        for origin in origins
    ]

    assert answers == [403, 403, 403, 403, 404]
    assert client.delete(path).status_code == 404


def test_the_valid_one_of_several_cookies_counts(stranger: TestClient, client: TestClient) -> None:
    """A browser sends the cookies of all paths, and the valid one signs in wherever it stands among stale ones."""
    keys = client.app.state.service.keys
    valid, revoked = keys.sign("cookie"), keys.sign("cookie")
    client.app.state.service.sessions.revoke(revoked)
    for values in ([valid, "old.x"], ["old.x", valid], [revoked, valid], [valid, revoked]):
        sent = "; ".join(f"{keys.cookie_name}={value}" for value in values)
        assert stranger.get("/api/v1/me", headers={"Cookie": sent}).status_code == 200, values
    stale = f"{keys.cookie_name}=old.x; {keys.cookie_name}={revoked}"
    assert stranger.get("/api/v1/me", headers={"Cookie": stale}).status_code == 401


@pytest.mark.parametrize("scheme", ["Basic YWRhOnB3", "Digest username=ada", "Negotiate YII="])
def test_a_proxys_own_sign_in_hides_no_cookie(
    stranger: TestClient, client: TestClient, scheme: str
) -> None:
    """Beside the header of a proxy's own sign-in the cookie counts, and a write still needs this page's Origin."""
    log_in(stranger, client)
    headers = {"Authorization": scheme}
    path = f"/api/v1/runs/{RUN}"

    assert stranger.get("/api/v1/me", headers=headers).status_code == 200
    assert stranger.delete(path, headers=headers).status_code == 403
    assert stranger.delete(path, headers={"Origin": OWN, **headers}).status_code == 404
    assert stranger.get("/api/v1/me", headers={"Authorization": "bearer wrong"}).status_code == 401


def test_a_page_without_tls_changes_nothing_over_tls(
    stranger: TestClient, client: TestClient
) -> None:
    """Over TLS, a write from the http page of the same host gives 403, since an attacker could alter that page."""
    log_in(stranger, client)
    secure = TestClient(client.app, base_url=OWN.replace("http:", "https:"))
    secure.cookies = stranger.cookies
    path = f"/api/v1/runs/{RUN}"
    asked = {
        scheme: secure.delete(path, headers={"Origin": f"{scheme}://{OWN.partition('//')[2]}"})
        for scheme in ("http", "https")
    }

    assert {scheme: each.status_code for scheme, each in asked.items()} == {
        "http": 403,
        "https": 404,
    }


def new_code(client: TestClient) -> str:
    return str(client.post("/api/v1/login-links").json()["url"]).partition("code=")[2]


def sign_in(
    stranger: TestClient, key: object, origin: str | None = OWN, **more: object
) -> Response:
    headers = {} if origin is None else {"Origin": origin}
    return stranger.post("/login", json={"key": key, **more}, headers=headers)


def test_a_sign_in_box_gives_a_cookie(stranger: TestClient, client: TestClient) -> None:
    """Posting a one-time code or the token gives a cookie. A code works once."""
    code = new_code(client)
    first, again = sign_in(stranger, code), sign_in(stranger, code)

    assert (first.status_code, again.status_code) == (204, 401)
    assert_is_cookie(first.headers["Set-Cookie"])
    assert "ampmon token link" in again.json()["detail"]
    assert stranger.get("/api/v1/runs").status_code == 200
    stranger.cookies.clear()
    assert stranger.get("/api/v1/runs").status_code == 401
    assert sign_in(stranger, client.headers["Authorization"].split()[1]).status_code == 204


def test_a_page_may_hold_its_session_itself(stranger: TestClient, client: TestClient) -> None:
    """With `memory`, a code gives a session secret instead of a cookie, which reads and writes like a token."""
    answer = sign_in(stranger, new_code(client), memory=True)
    known = {"Authorization": f"Bearer {answer.json()['session']}"}

    assert "Set-Cookie" not in answer.headers
    assert stranger.get("/api/v1/runs", headers=known).status_code == 200
    assert stranger.delete(f"/api/v1/runs/{RUN}", headers=known).status_code == 404
    assert stranger.get("/api/v1/runs").status_code == 401


def test_what_was_used_or_signed_out_has_no_other_spelling(
    stranger: TestClient, client: TestClient
) -> None:
    """A used code and a signed-out session stay void when they are written with or without the name of their token."""
    code = new_code(client)
    session = sign_in(stranger, code, memory=True).json()["session"]
    stranger.post("/logout", headers={"Authorization": f"Bearer {session}"})
    for given in (code, session):
        expiry, *_, signature = given.split(".")
        for key in (f"{expiry}.{signature}", f"{expiry}.{OWN_TOKEN}.{signature}"):
            known = {"Authorization": f"Bearer {key}"}
            assert sign_in(stranger, key).status_code == 401
            assert stranger.get("/api/v1/runs", headers=known).status_code == 401


@pytest.mark.parametrize("origin", [None, "null", "http://evil.example", "http://127.0.0.1:9999"])
def test_no_other_site_signs_in(
    stranger: TestClient, client: TestClient, origin: str | None
) -> None:
    """A valid code from another origin gives 403 and stays valid."""
    code = new_code(client)

    assert sign_in(stranger, code, origin).status_code == 403
    assert sign_in(stranger, code).status_code == 204


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"key": 1}',
        b'{"key": "a", "more": 1}',
        b"\xff",
        b"[" * 4000,
        rb'{"key": "\ud800"}',
        b" " * 5000,
    ],
)
def test_a_bad_sign_in_is_said_to_be(stranger: TestClient, body: bytes) -> None:
    """A malformed or oversized sign-in body gives 422."""
    answer = stranger.post("/login", content=body, headers={"Origin": OWN})

    assert answer.status_code == 422
    assert answer.json()["field"] == "body"


def test_wrong_codes_lock_out_nobody(stranger: TestClient, client: TestClient) -> None:
    """In a flood of wrong codes, which ask the database nothing, a valid code still works by form and by link."""
    codes = new_code(client), new_code(client)
    with statements() as executed:
        tried = [sign_in(stranger, f"wrong {number}") for number in range(30)]
        tried += [sign_in(stranger, f"{codes[0]}{number}") for number in range(30)]
        assert {each.status_code for each in tried} == {401}
        assert stranger.get("/login?code=wrong").status_code == 401
    assert [each for each in executed if "revoked_sessions" in each] == []
    assert sign_in(stranger, codes[0]).status_code == 204
    assert stranger.get(f"/login?code={codes[1]}").status_code == 303


def test_signing_out_voids_the_session(stranger: TestClient, client: TestClient) -> None:
    """Signing out voids copies of that cookie or session. Other sessions stay valid."""
    name = client.app.state.service.keys.cookie_name  # type: ignore[attr-defined]
    carried: list[dict[str, str]] = []
    for _ in range(2):
        log_in(stranger, client)
        carried.append({"Cookie": f"{name}={stranger.cookies[name]}"})
        stranger.cookies.clear()
    for _ in range(2):
        session = sign_in(stranger, new_code(client), memory=True).json()["session"]
        carried.append({"Authorization": f"Bearer {session}"})

    def opened() -> list[int]:
        return [stranger.get("/api/v1/me", headers=each).status_code for each in carried]

    assert opened() == [200] * 4
    for each in (carried[0], carried[2]):
        assert stranger.post("/logout", headers={"Origin": OWN, **each}).status_code == 204
    assert opened() == [401, 200, 401, 200]
    assert client.post("/logout").status_code == 204
    assert client.get("/api/v1/me").status_code == 200


@pytest.mark.storage
def test_a_session_is_revoked_at_every_server(store: Store, tmp_path: Path) -> None:
    """Other servers reject a revoked session within two seconds, and new servers at once. No session is printed."""
    clock, keys, settings = ManualClock(), Keys.load(tmp_path), Settings(data_directory=tmp_path)
    sessions, others = Sessions(store), Sessions(store, monotonic=clock)
    tokens = Tokens(store)
    callers = Callers(keys, tokens, others, settings)
    cookie, other = keys.sign("cookie"), keys.sign("cookie")

    async def known(*given: str) -> list[Caller | None]:
        headers = [Headers({"cookie": f"{keys.cookie_name}={each}"}) for each in given]
        return [await callers.with_cookie(each) for each in headers]

    caller, _ = asyncio.run(known(cookie, other))
    assert caller is not None
    sessions.revoke(cookie), sessions.revoke(cookie)
    clock.advance(KNOWN_S)
    assert not asyncio.run(callers.is_known(caller))
    assert [each is None for each in asyncio.run(known(cookie, other))] == [True, False]
    assert other not in repr(callers)
    assert asyncio.run(Sessions(store).is_revoked(cookie))
    tokens.close()


def test_many_streams_of_a_session_cost_one_lookup(store: Store) -> None:
    """Concurrent checks of a known session cost one query in two seconds."""
    clock, asked = ManualClock(), list[str]()
    sessions = Sessions(store, monotonic=clock)
    listen(store._engine, "before_cursor_execute", lambda *each: asked.append(each[2]))

    async def ask(times: int) -> list[bool]:
        return await asyncio.gather(*(sessions.is_revoked("a session") for _ in range(times)))

    assert asyncio.run(ask(1)) == [False]
    clock.advance(KNOWN_S)
    asked.clear()
    assert asyncio.run(ask(50)) == [False] * 50
    assert len([each for each in asked if "revoked_sessions" in each]) == 1


def test_revoked_sessions_are_so_many_and_no_more(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Revoked sessions are kept until they expire. Beyond a limit, and only then, they are sorted and some dropped."""
    monkeypatch.setattr(access, "REVOKED_MAX", 3)
    now = [1e9]
    sessions = Sessions(store, clock=lambda: now[0])

    def kept() -> int:
        with store._engine.connect() as connection:
            return connection.scalar(text("SELECT count(*) FROM revoked_sessions")) or 0

    with statements() as executed:
        for number in range(5):
            now[0] += 1
            sessions.revoke(f"session {number}")
    assert len([each for each in executed if "ORDER BY" in each]) == 2
    assert kept() == 3
    assert not asyncio.run(Sessions(store).is_revoked("session 1"))
    assert asyncio.run(Sessions(store).is_revoked("session 2"))
    now[0] += SECONDS["cookie"]
    sessions.revoke("later")
    assert kept() == 1


def test_a_session_is_no_cookie(tmp_path: Path) -> None:
    """In-memory sessions expire after a week. Sessions and cookies are neither interchangeable nor valid elsewhere."""
    keys, other = Keys.load(tmp_path / "one"), Keys.load(tmp_path / "two")
    session = keys.sign("session", now=1000.0)

    assert keys.holder("session", session, now=1000.0 + SECONDS["session"] - 2)
    assert not keys.holder("session", session, now=1000.0 + SECONDS["session"] + 2)
    assert not other.holder("session", session, now=1000.0)
    assert not keys.holder("cookie", session, now=1000.0)
    assert not keys.holder("session", keys.sign("cookie", now=1000.0), now=1000.0)


def test_a_cookie_outlives_the_server_and_not_its_time(tmp_path: Path) -> None:
    """A cookie survives restarts until it expires. Changed cookies and those of other servers are invalid."""
    keys = Keys.load(tmp_path / "one")
    again, other = Keys.load(tmp_path / "one"), Keys.load(tmp_path / "two")
    cookie = keys.sign("cookie", now=1000.0)
    later = f"9{cookie}"
    of_before = f"2000.{OWN_TOKEN}.{keys._signature('cookie', OWN_TOKEN, '2000')}"

    assert again.holder("cookie", of_before, now=1000.0)
    assert again.holder("cookie", cookie, now=1000.0 + SECONDS["cookie"] - 2)
    assert not again.holder("cookie", cookie, now=1000.0 + SECONDS["cookie"] + 2)
    assert not again.holder("cookie", later, now=1000.0)
    assert not other.holder("cookie", cookie, now=1000.0)
    assert not any(again.holder("cookie", junk) for junk in ("", ".", "x.y", "1", "9" * 5000))


def test_the_token_is_kept_from_others(tmp_path: Path) -> None:
    """The token is 256 random bits, persists, and lies in a file only its owner can read."""
    keys = Keys.load(tmp_path / "data")
    path = tmp_path / "data" / "token"

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert len(keys.token) == 43
    assert Keys.load(tmp_path / "data") == keys
    assert keys.token not in repr(keys)
    assert Keys.load(tmp_path / "other").token != keys.token


@pytest.mark.parametrize("damaged", ["", "short", "é" * 50])
def test_a_weak_token_is_refused(tmp_path: Path, damaged: str) -> None:
    """An empty, short or non-ASCII token file raises an error that says what to do."""
    (tmp_path / "token").write_text(damaged)
    with pytest.raises(ConfigurationError, match="delete it"):
        Keys.load(tmp_path)


@pytest.mark.storage
def test_codes_expire(store: Store, tmp_path: Path) -> None:
    """A code works once, at any server process, for ten minutes or the lifetime it was created with."""
    now = [1e9]
    keys, servers = Keys.load(tmp_path), [Sessions(store, clock=lambda: now[0]) for _ in range(2)]
    lasting_s = SECONDS["cookie"]

    def new(token_id: str = OWN_TOKEN, seconds: int | None = None) -> str:
        return keys.sign("code", token_id, now[0], seconds)

    def redeem(code: str, at: int) -> str | None:
        holder = keys.holder("code", code, now[0])
        return holder if holder and servers[at].revoke(code) else None

    brief, brief_too, others, lasting = new(), new(), new("another"), new(seconds=lasting_s)
    now[0] += 599.0
    assert redeem(brief, 1)
    assert not redeem(brief, 0)
    assert redeem(others, 1) == "another"
    now[0] += 2.0
    assert not redeem(brief_too, 1)
    now[0] += lasting_s - 700
    assert redeem(lasting, 1)
    assert not redeem(lasting, 0)


@pytest.mark.storage
def test_of_requests_with_one_code_one_wins(store: Store) -> None:
    """If server processes use up the same code at the same time, one of them gets it."""
    servers = [Sessions(store) for _ in range(8)]
    with ThreadPoolExecutor(len(servers)) as together:
        for number in range(10):
            used = [together.submit(each.revoke, f"code {number}") for each in servers]
            won = [each.result() for each in used]
            assert sorted(won) == [False] * 7 + [True]


def test_servers_may_share_a_token(tmp_path: Path) -> None:
    """Servers with a shared token file accept the same callers and cookies. An unusable file raises an error."""
    shared = tmp_path / "shared"
    with pytest.raises(ConfigurationError, match="copy the file"):
        Keys.load(tmp_path / "one", shared)
    shared.write_text("short")
    with pytest.raises(ConfigurationError, match="copy the file"):
        Keys.load(tmp_path / "one", shared)
    shared.write_text(Keys.load(tmp_path / "first").token)
    one, two = Keys.load(tmp_path / "one", shared), Keys.load(tmp_path / "two", shared)

    assert one == two
    assert two.holder("cookie", one.sign("cookie"))
    assert two.cookie_name == one.cookie_name != Keys.load(tmp_path / "other").cookie_name
    assert not (tmp_path / "one" / "token").exists()


def test_a_host_may_be_allowed(tmp_path: Path) -> None:
    """The server answers a configured host name."""
    app = create_app(Settings(data_directory=tmp_path / "data", allowed_hosts=("gpu.example",)))
    with TestClient(app, base_url="http://gpu.example") as stranger:
        assert stranger.get("/").status_code == 401
