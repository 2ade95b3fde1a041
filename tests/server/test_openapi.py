"""The OpenAPI document is true: what is asked by it, or against it, is answered as it says, and never with a 5xx."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import msgspec
import pytest
import schemathesis
from hypothesis import settings as profile
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import from_schema
from schemathesis.engine.events import FatalError, NonFatalError, ScenarioFinished
from schemathesis.python import asgi
from schemathesis.specs.openapi.checks import positive_data_acceptance

from ampmon_server.analysis.policy.settings import NAMES
from ampmon_server.http.app import create_app
from ampmon_server.http.auth import Tokens
from ampmon_server.http.service import Service
from ampmon_server.settings import Settings
from ampmon_server.store import Sender
from batches import Trainer
from waiting import DEADLINE_S


LIVE, INGEST = "/api/v1/live", "POST /api/v1/ingest"
FIGURES = "GET /api/v1/runs/{run_id}/figures/{name}"
UUID_FORM = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
OFF = {"enabled": False}
EXAMPLES = profile().max_examples
SHORT, LONG = EXAMPLES <= 10, EXAMPLES >= 1000
"""Whether each operation is asked once, validly, as in the suite; and whether every case is tried, for minutes."""
MANY_CASES = [
    "/api/v1/ingest",
    *(["/api/v1/tokens", "/api/v1/runs", "/api/v1/compare/figures/{name}"] if not LONG else []),
    *(
        f"/api/v1/runs/{{run_id}}/{name}"
        for name in ("figures/{name}", "parameters", "scalars", "simulate", "skips/nearest")
        if not LONG
    ),
]
"""Paths with up to thousands of cases, one for each value of each field. Here fuzzing draws some of them."""
IN_A_ROW = {"stateful": {"max-steps": 8, "generation": {"max-examples": 8}}}
"""Calls in a row, each with what the one before answered: what was made is there, and what was deleted is gone."""
ASKED: dict[str, Any] = {
    "seed": 1,
    "generation": {
        "deterministic": True,
        "mode": "positive" if SHORT else "all",
        "max-examples": 1 if SHORT else EXAMPLES,
        "database": "none",
        "no-shrink": True,
    },
    "phases": {"examples": OFF, "coverage": OFF, "stateful": OFF} if SHORT else IN_A_ROW,
    "request-timeout": DEADLINE_S,
    "checks": {"positive_data_acceptance": OFF},  # `what_is_valid_is_accepted` is stricter
    "operations": [
        # A stranger is told 401 of any other method, and /runs/groups under PATCH is a run of that name: 404.
        {"include-path": path, "checks": {"unsupported_method": OFF}}
        for path in (
            "/login",
            "/api/v1/proof",
            *(f"/api/v1/runs/{name}" for name in ("groups", "scales", "losses")),
        )
    ]
    + [{"include-path": path, "phases": {"coverage": OFF}} for path in MANY_CASES],
}
"""All checks but those, at every run alike."""
RELATED = {
    ("GET /api/v1/compare/figures/{name}", "stop"),  # is after `start`
    (FIGURES, "stop"),
    ("GET /api/v1/runs", "cursor"),  # goes with the newest first, and with no `offset`
    *(("GET /api/v1/runs/{run_id}/simulate", name) for name in NAMES),  # not each policy has each
    *((FIGURES, f"sim_{name}") for name in NAMES),
    ("GET /api/v1/proof", "address"),  # is one of the server's own
    ("POST /api/v1/mutes", "until"),  # is in the future
    ("POST /api/v1/mutes", "project"),  # goes with no `run_id`
    ("POST /api/v1/tokens", "expires"),  # is in the future
}
"""Inputs whose values depend on what JSON Schema does not see: another input, the server's clock, or its settings."""


@schemathesis.check
def what_is_valid_is_accepted(context: Any, response: Any, case: Any) -> bool | None:
    """As `positive_data_acceptance` has it, but for the inputs that are ``RELATED`` to others."""
    if response.status_code in {421, 422}:
        problem = msgspec.json.decode(response.content)
        asked = (case.operation.label, field := problem.get("field"))
        if asked in RELATED:
            return None
        # Of a batch: counts that do not add up, a null without its kind, and text where msgpack has bytes of its own.
        if asked[0] == INGEST and problem["detail"].startswith((f"{field}: ", "Expected `bytes`")):
            return None
    return positive_data_acceptance(context, response, case)


@schemathesis.serializer("application/msgpack")
def as_msgpack(_: object, value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except OverflowError:  # msgpack has no such integers: the server is sent what is none
        return msgspec.json.encode(value)


@pytest.fixture
def service(settings: Settings) -> Iterator[Service]:
    opened = Service.open(settings)
    yield opened
    asgi.shutdown_lifespans()
    opened.close()


def a_run(service: Service) -> tuple[str, str]:
    """The ids of a run with something for every route to show, and of its attempt."""
    trainer = Trainer(uuid4())
    records = [
        *trainer.updates(40, skipped=[3], sampled=[0, 20]),
        trainer.scalars({"loss": 1.0}),
        trainer.event("init"),
    ]
    service.store.ingest(trainer.batch(records), Sender("ada"))
    return str(trainer.run_id), str(trainer.attempt_id)


def described(service: Service, wanted: Callable[[str], bool]) -> Any:
    """What the server's own document tells of the paths that are ``wanted``. Most runs that are asked for are there."""
    app = create_app(service.settings, service)
    document = app.openapi()
    document["paths"] = {path: told for path, told in document["paths"].items() if wanted(path)}
    run, attempt = a_run(service)
    show(run, document)
    token = service.keys.token
    own = {"base-url": "http://127.0.0.1:8267", "auth": {"openapi": {"token": {"bearer": token}}}}
    schema = schemathesis.openapi.from_dict(
        document, config=SchemathesisConfig.from_dict({**ASKED, **own})
    )
    schema.app = app

    @schema.hook
    def map_path_parameters(context: Any, path_parameters: dict[str, Any]) -> dict[str, Any]:
        if context.operation.method == "delete" or "run_id" not in (path_parameters or {}):
            return path_parameters
        return {**path_parameters, "run_id": run}

    @schema.hook
    def map_query(_: object, query: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(runs := (query or {}).get("runs"), str):
            return query
        return {**query, "runs": UUID_FORM.sub(run, runs, count=1)}

    @schema.hook
    def map_body(context: Any, body: Any) -> Any:
        if context.operation.label == INGEST and isinstance(body, dict):
            known = {"run_id": run, "attempt_id": attempt}
            body |= {
                name: known[name] for name in known if UUID_FORM.fullmatch(str(body.get(name)))
            }
        return whole(body)

    return schema


def whole(value: Any) -> Any:
    """With 2 for 2.0: an integer to JSON Schema, but to no strict decoder. None is too large for msgpack."""
    if isinstance(value, dict):
        return {name: whole(each) for name, each in value.items()}
    if isinstance(value, list):
        return [whole(each) for each in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value) if value == value // 1 and abs(value) < 2**63 else float(value)
    return value


def show(run: str, document: dict[str, Any]) -> None:
    """Name a run wherever one is asked for, but to be deleted: where no hook looks, examples are taken."""
    for path in document["paths"].values():
        for method, operation in path.items():
            for each in operation.get("parameters", ()):
                if each["name"] == "runs":
                    each["example"] = [run]
                if each["name"] == "run_id" and method != "delete":
                    each["example"] = run


TOKEN_LEFT_OUT = "parameter `Authorization` in header - violates `required`"
"""No such case: the configured token is sent all the same. `test_walk.py` asks every route without one."""


def asked(document: Any) -> list[str]:
    """Asks all that the document lets think of; each thing that is not as it says, in words."""
    wrong = []
    for event in from_schema(document).execute():
        if isinstance(event, NonFatalError | FatalError):
            wrong.append(repr(event))
        if isinstance(event, ScenarioFinished):
            wrong += [
                f"{event.recorder.label}: {check.name}: {check.failure_info.failure.message}"
                for checks in event.recorder.checks.values()
                for check in checks
                if check.failure_info is not None
                and TOKEN_LEFT_OUT not in check.failure_info.failure.message
            ]
    return wrong


def test_what_is_answered_is_what_is_told(service: Service) -> None:
    """By every check that there is: statuses, types and shapes are in the document, and no answer is a 5xx."""
    assert asked(described(service, lambda path: path != LIVE)) == []


def test_the_stream_is_what_is_told(service: Service) -> None:
    """The same of the stream of news, where it ends once it has begun."""
    service.bus.close()
    assert asked(described(service, lambda path: path == LIVE)) == []


def test_a_failure_behind_two_calls_is_noticed(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails only for a token that was made before is found by the calls in a row."""
    revoke = Tokens.revoke

    def failing(tokens: Tokens, named: str) -> None:
        revoke(tokens, named)
        raise RuntimeError(named)

    monkeypatch.setattr(Tokens, "revoke", failing)
    monkeypatch.setitem(
        ASKED, "phases", {"examples": OFF, "coverage": OFF, "fuzzing": OFF, **IN_A_ROW}
    )

    found = asked(described(service, lambda path: path.startswith("/api/v1/tokens")))

    assert any("not_a_server_error" in each for each in found)


def test_what_is_not_told_is_noticed(service: Service) -> None:
    """A document that keeps an answer to itself is found to be untrue."""
    schema = described(service, lambda path: path == "/api/v1/runs/{run_id}/diagnosis")
    del schema.raw_schema["paths"]["/api/v1/runs/{run_id}/diagnosis"]["get"]["responses"]["200"]

    assert any("200" in each for each in asked(schema))
