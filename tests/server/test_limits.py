"""Limits per caller: cookie parsing, request rates and event streams."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from fastapi import FastAPI
from starlette.requests import Request
from starlette.testclient import TestClient
from starlette.types import Message

from ampmon.transport.proof import ID_LENGTH, NONCE_LENGTH, PROOF_PATH
from ampmon_server.http import logs
from ampmon_server.http.app import create_app
from ampmon_server.http.auth import guard
from ampmon_server.http.auth.limits import Limits, Rate, TooManyAttempts
from ampmon_server.http.logs import LINES_BURST
from ampmon_server.http.service import Service
from ampmon_server.settings import Settings
from doubles import ManualClock
from statements import statements
from waiting import DEADLINE_S


URL = "http://127.0.0.1:8267"


@pytest.mark.parametrize("path", ["/healthz", "/login?code=x", PROOF_PATH])
def test_a_quoted_cookie_is_not_unquoted(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The server never unquotes cookies, which can take quadratic time."""
    cookie = 'a="' + '\\"' * 31_000 + '"'
    unquoted: list[str] = []

    def unquote(value: str) -> str:
        if value.startswith('"'):
            unquoted.append(value)
        return value

    monkeypatch.setattr("http.cookies._unquote", unquote)
    refused = TestClient(client.app, base_url=URL).get(path, headers={"Cookie": cookie})

    assert unquoted == []
    assert refused.status_code in {401, 422}
    planted = Request({"type": "http", "headers": [(b"cookie", b'a="b"')]})
    assert planted.cookies == {"a": '"b"'}
    assert unquoted == ['"b"']


def test_a_cookie_is_found_among_others(app: FastAPI, stranger: TestClient) -> None:
    """Quoted or broken cookies of other programs do not hide the server's own."""
    keys = app.state.service.keys
    own = f"{keys.cookie_name}={keys.sign('cookie')}"
    for cookie in (own, f'a="2|1:0|x"; ="; {own}', f"{own};b=[{{]}};c", f"  a ;{own} ;"):
        assert stranger.get("/healthz", headers={"Cookie": cookie}).status_code == 200, cookie


def test_a_rate_is_kept() -> None:
    """A bucket gives its burst, then what has refilled, and says how long to wait."""
    now = [0.0]
    rate = Rate(10.0, 5.0, lambda: now[0])
    assert [rate.taken() for _ in range(5)] == [0.0] * 5
    assert (wait_s := rate.taken()) == pytest.approx(0.1)
    assert TooManyAttempts("too often", wait_s).wait_s == 1
    now[0] += 0.1
    assert rate.taken() == 0.0
    assert rate.taken() > 0
    now[0] += 1e9
    assert [rate.taken() for _ in range(5)] == [0.0] * 5
    assert rate.taken() > 0


def test_those_who_come_too_often_stand_in_line() -> None:
    """The burst passes at once. Each later request waits its turn, up to the maximum."""
    now = [0.0]
    rate = Rate(10.0, 2.0, lambda: now[0])

    waits = [rate.turn(0.25) for _ in range(6)]

    assert waits == pytest.approx([0, 0, 0.1, 0.2, 0.25, 0.25])
    now[0] += 0.25
    assert rate.turn(0.25) == pytest.approx(0.1)


HOST = {"Host": "127.0.0.1"}
PROOF = f"{PROOF_PATH}?nonce={'a' * NONCE_LENGTH}&token={'0' * ID_LENGTH}&address="
REFUSED: list[tuple[int, str, str, dict[str, str]]] = [
    (401, "GET", "/healthz", {**HOST, "Authorization": f"Bearer {'x' * 43}"}),
    (401, "DELETE", "/login", HOST),
    (401, "GET", "/login?code=never", HOST),
    (401, "POST", "/login", {**HOST, "Origin": "http://127.0.0.1"}),
    (403, "POST", "/login", HOST),
    (404, "GET", "/js/1/never.js", HOST),
    (421, "GET", "/healthz", {"Host": "evil.example"}),
    (421, "GET", f"{PROOF}evil.example:1", HOST),
    (422, "GET", f"{PROOF_PATH}?nonce=1", HOST),
]
"""Requests without authentication that the guard or an open route rejects."""


async def answered(
    app: FastAPI, method: str, target: str, headers: dict[str, str], body: bytes = b""
) -> int:
    begun: list[int] = []

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            begun.append(message["status"])

    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Message:
        return next(messages, None) or await asyncio.Future()  # the client stays connected

    path, _, query = target.partition("?")
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "scheme": "http", "method": method, "path": path, "headers": raw}
    ends = {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8267)}
    await app({**scope, **ends, "query_string": query.encode()}, receive, send)
    return begun[0]


def test_strangers_wait_and_hold_up_nobody(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rejected unauthenticated requests wait their turn. Accepted and authenticated ones do not, even if limited."""
    monkeypatch.setattr(guard, "STRANGERS_PER_S", 0.001)
    monkeypatch.setattr(guard, "STRANGERS_BURST", 0.0)
    monkeypatch.setattr(guard, "STRANGERS_WAIT_S", math.inf)
    monkeypatch.setattr(guard, "Rate", partial(Rate, clock=ManualClock()))
    framed = replace(settings, frame_ancestors=("https://hub.example",), requests_per_s=0.25)
    service = Service(framed)
    service.limits = Limits(framed, ManualClock())
    app = create_app(framed, service)
    app.state.service = service
    known = {**HOST, "Authorization": f"Bearer {service.keys.token}"}
    own = {**HOST, "Origin": "http://127.0.0.1"}
    waits: list[float] = []

    async def together() -> tuple[list[int], list[int]]:
        over, all_wait = asyncio.Event(), asyncio.Event()

        async def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == len(REFUSED):
                all_wait.set()
            await over.wait()

        monkeypatch.setattr(guard, "asyncio", SimpleNamespace(sleep=sleep))
        refused = asyncio.gather(
            *(
                answered(app, method, target, headers, b'{"key": "never"}')
                for _, method, target, headers in REFUSED
            )
        )
        others = await asyncio.gather(
            answered(app, "GET", f"{PROOF}127.0.0.1:8267", HOST),
            answered(app, "POST", "/login", own, b'{"key": "%s"}' % service.keys.token.encode()),
            answered(app, "GET", "/healthz", known),
            answered(app, "GET", "/healthz", known),
        )
        assert not refused.done()
        await all_wait.wait()
        over.set()
        return await refused, others

    refused, others = asyncio.run(asyncio.wait_for(together(), DEADLINE_S))
    service.close()

    assert refused == [each[0] for each in REFUSED]
    assert others == [200, 204, 200, 429]
    # The rate is one request per 1000 s.
    assert sorted(waits) == pytest.approx([1000 * (index + 1) for index in range(len(REFUSED))])


@pytest.fixture
def narrow(settings: Settings) -> Iterator[FastAPI]:
    """A server with tight limits."""
    small = replace(settings, requests_per_s=1.0, streams_per_token_max=2)
    service = Service(small)
    service.limits = Limits(small, ManualClock())
    app = create_app(small, service)
    with TestClient(app, base_url=URL):
        yield app
    service.close()


def holding(app: FastAPI, name: str) -> TestClient:
    secret, _ = app.state.service.tokens.new(name, "ada", ["read", "ingest"])
    return TestClient(app, base_url=URL, headers={"Authorization": f"Bearer {secret}"})


def test_one_token_asks_so_often_and_no_more(narrow: FastAPI) -> None:
    """A token over its rate gets 429 with Retry-After and is counted. Other tokens are unaffected."""
    ada, eve = holding(narrow, "ada"), holding(narrow, "eve")
    answers = [ada.get("/healthz") for _ in range(8)]

    assert [each.status_code for each in answers] == [200] * 4 + [429] * 4
    assert int(answers[-1].headers["Retry-After"]) >= 1
    assert "requests a second" in answers[-1].json()["detail"]
    metrics = eve.get("/metrics").text
    assert 'ampmon_limited_total{limit="requests"} 4.0' in metrics


def test_so_many_streams_are_open_and_no_more(narrow: FastAPI) -> None:
    """Streams are limited per token and in total, and a closed stream frees its place."""
    limits = narrow.state.service.limits
    with contextlib.ExitStack() as open_now:
        for token_id in ("a", "a", "b", "c"):
            open_now.enter_context(limits.stream(token_id))
        for token_id in ("a", "b", "d"):
            with pytest.raises(TooManyAttempts), limits.stream(token_id):
                pass
        refused = holding(narrow, "ada").get("/api/v1/live")
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "10")
    narrow.state.service.bus.close()
    known = holding(narrow, "eve")
    assert [known.get("/api/v1/live").status_code for _ in range(3)] == [200] * 3
    assert limits.refused["streams"] == 4
    assert not limits._streams


def test_rejected_tokens_are_cheap(
    app: FastAPI,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a flood of unknown tokens, few reach the database or the log, and a known token still works."""
    caplog.set_level(logging.INFO, "ampmon_server")
    monkeypatch.setattr(logs, "LINES_PER_S", 1e-6)
    stranger: TestClient = request.getfixturevalue("stranger")
    tokens = app.state.service.tokens
    tokens.monotonic = ManualClock()  # a stopped clock, so no lookup is repeated
    tokens._guesses = Rate(1e-6, 1 + 10)
    secret, _ = tokens.new("ci", "ada", ["read"])
    known = {"Authorization": f"Bearer {secret}"}
    assert stranger.get("/healthz", headers=known).status_code == 200
    with statements() as executed:
        for number in range(150):
            flood = {"Authorization": f"Bearer ampmon_{number}"}
            assert stranger.get("/healthz", headers=flood).status_code == (
                401 if number < 10 else 429
            )
        assert stranger.get("/healthz", headers=known).status_code == 200
    assert len([each for each in executed if "FROM tokens" in each]) == 10 + 1
    lines = [each for each in caplog.records if each.name == "ampmon_server.http.request_log"]
    assert len(lines) == LINES_BURST
