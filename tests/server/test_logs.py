"""Logs: request ids, one line per rejected or failed request, and no secrets."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from ampmon import wire
from ampmon_server.http import logs
from ampmon_server.settings import LogFormat
from batches import Trainer
from serving import Server


RUN = "/api/v1/runs/{run_id}"
MSGPACK = {"Content-Type": "application/msgpack"}


@contextmanager
def saying(form: LogFormat) -> Iterator[None]:
    """Log in this process as `ampmon serve` does."""
    root, own = logging.getLogger(), logging.getLogger("ampmon_server")
    before, levels = list(root.handlers), (root.level, own.level)
    root.handlers = []
    try:
        logs.set_up(form)
        yield
    finally:
        root.handlers = before
        root.setLevel(levels[0])
        own.setLevel(levels[1])


def lines(server: Server) -> list[dict[str, Any]]:
    """The server's JSON log lines, without health checks."""
    parsed = [json.loads(line) for line in server.printed.splitlines() if line.startswith("{")]
    return [line for line in parsed if line.get("route") != "/healthz"]


@pytest.fixture
def speaking(new_server: Callable[..., Server]) -> Server:
    """A server that logs JSON."""
    return new_server(options=["--log-format", "json"])


def test_a_refused_request_is_one_line(speaking: Server) -> None:
    """A rejected request is logged as one JSON line with the answer's request id. A successful one is not logged."""
    assert speaking.request("GET", "/api/v1/runs").status == 200
    answer = speaking.request("GET", f"/api/v1/runs/{uuid4()}?secret=query")
    (line,) = lines(speaking)

    assert answer.status == 404
    assert line["request"] == answer.headers["X-Request-ID"]
    assert (line["method"], line["route"], line["status"]) == ("GET", RUN, 404)
    assert (line["level"], line["message"]) == ("info", f"GET {RUN}: 404")
    assert 0 < line["seconds"] < 10
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", line["time"])


def test_nothing_secret_is_logged(speaking: Server) -> None:
    """No token, code, query, header, body or path value is logged."""
    for token in (speaking.token, "hunter2"):
        headers = {"Authorization": f"Bearer {token}", "Cookie": "a=hunter2", "X-Other": "hunter2"}
        for path in (
            "/hunter2",
            "/api/v1/tokens/hunter2",
            "/login?code=hunter2",
            "/api/v1/live?runs=hunter2",
        ):
            for method in ("GET", "POST", "DELETE"):
                speaking.request(method, path, headers=headers, body=b"hunter2")
    logged = lines(speaking)

    assert len(logged) >= 20
    for secret in ("hunter2", speaking.token, "code="):
        assert secret not in speaking.printed
    assert {line["route"] for line in logged} >= {"other", "/api/v1/tokens/{id}"}


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("abc-1.2_Z", True),
        ("x" * 64, True),
        ("x" * 65, False),
        ("a b", False),
        ('"', False),
        ("", False),
    ],
)
def test_an_id_that_is_given_is_taken(client: TestClient, given: str, taken: bool) -> None:
    """A short, harmless X-Request-ID is used. Any other is replaced."""
    answers = [client.get(path, headers={"X-Request-ID": given}) for path in ("/healthz", "/none")]
    ids = [answer.headers["X-Request-ID"] for answer in answers]

    assert (ids == [given, given]) is taken
    assert all(re.fullmatch(r"[\w.-]{1,64}", each) for each in ids)


def test_ids_differ(client: TestClient, stranger: TestClient) -> None:
    """Each request without an id gets its own, also without authentication."""
    ids = [caller.get("/readyz").headers["X-Request-ID"] for caller in (client, stranger) * 20]

    assert len(set(ids)) == len(ids) == 40


def test_the_id_is_in_every_thread(
    app: FastAPI, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request's id is set in the threads that store a batch and read runs."""
    store, seen = app.state.service.store, []
    for name in ("ingest_together", "runs"):
        asked = getattr(type(store), name)

        def noting(*given: Any, asked: Any = asked, **more: Any) -> Any:
            seen.append(logs.REQUEST.get())
            return asked(*given, **more)

        monkeypatch.setattr(type(store), name, noting)
    trainer = Trainer()
    body = wire.encode(trainer.batch(trainer.updates(1)))
    sent = client.post("/api/v1/ingest", content=body, headers={**MSGPACK, "X-Request-ID": "one"})
    read = client.get("/api/v1/runs", headers={"X-Request-ID": "two"})

    assert [sent.status_code, read.status_code] == [200, 200]
    assert (seen[0], seen[-1]) == ("one", "two")
    assert logs.REQUEST.get() is None


def test_a_failure_is_reported_once_with_its_cause(
    app: FastAPI,
    client: TestClient,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A server error is logged as one line with the request id and traceback."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(type(app.state.service.store), "runs", broken)
    with saying("json"):
        answer = client.get("/api/v1/runs?q=1", headers={"X-Request-ID": "failing"})
    (line,) = [json.loads(each) for each in capsys.readouterr().err.splitlines()]

    assert answer.status_code == 500
    assert (line["request"], line["level"]) == ("failing", "error")
    assert (line["route"], line["status"]) == ("/api/v1/runs", 500)
    assert "RuntimeError: planted" in line["exception"]


def test_any_message_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A message with line breaks or lone surrogates is one JSON line, also from other libraries."""
    with saying("json"):
        logging.getLogger("urllib3").warning("of %s", "a\nb\udcff")
    (line,) = capsys.readouterr().err.splitlines()

    assert json.loads(line)["message"] == "of a\nb\udcff"
    assert json.loads(line)["logger"] == "urllib3"


def test_plain_lines_are_words(new_server: Callable[..., Server]) -> None:
    """By default a line is plain text with the id, and a path cannot break out of it."""
    server = new_server()
    answer = server.request("GET", "/a%0Ab%1b[31m", headers={"X-Request-ID": "plain"})
    printed = server.printed.replace(f"{server.announced}\n", "").splitlines()

    assert answer.status == 404
    assert [line for line in printed if "healthz" not in line] == ["GET other: 404 [plain]"]
