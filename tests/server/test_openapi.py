"""The OpenAPI document is accurate: valid and invalid requests get the answers it documents, and never a 5xx."""

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

from ampmon_server.analysis.policy.scalers import NAMES
from ampmon_server.http.app import create_app
from ampmon_server.http.auth.tokens import Tokens
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
"""SHORT: one valid request per operation, as in the test suite. LONG: every case, which takes minutes."""
MANY_CASES = [
    "/api/v1/ingest",
    *(["/api/v1/tokens", "/api/v1/runs", "/api/v1/compare/figures/{name}"] if not LONG else []),
    *(
        f"/api/v1/runs/{{run_id}}/{name}"
        for name in ("figures/{name}", "parameters", "scalars", "simulate", "skips/nearest")
        if not LONG
    ),
]
"""Paths with up to thousands of cases, one per value of each field. Fuzzing draws some of them instead."""
IN_A_ROW = {"stateful": {"max-steps": 8, "generation": {"max-examples": 8}}}
"""Stateful calls: each uses the previous answer, so created objects must exist and deleted ones must not."""
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
        # Another method gets 401 without a token, and PATCH /runs/groups gets 404 as a run of that name.
        {"include-path": path, "checks": {"unsupported_method": OFF}}
        for path in (
            "/login",
            "/api/v1/proof",
            *(f"/api/v1/runs/{name}" for name in ("groups", "scales", "losses")),
        )
    ]
    + [{"include-path": path, "phases": {"coverage": OFF}} for path in MANY_CASES],
}
"""All checks except those turned off here, with the same cases in every run."""
RELATED = {
    ("GET /api/v1/compare/figures/{name}", "stop"),  # must be after `start`
    (FIGURES, "stop"),
    ("GET /api/v1/runs", "cursor"),  # needs newest-first order and no `offset`
    *(("GET /api/v1/runs/{run_id}/simulate", name) for name in NAMES),  # each policy has only some
    *((FIGURES, f"sim_{name}") for name in NAMES),
    ("GET /api/v1/proof", "address"),  # must be one of the server's own
    ("POST /api/v1/mutes", "until"),  # must be in the future
    ("POST /api/v1/mutes", "project"),  # excludes `run_id`
    ("POST /api/v1/tokens", "expires"),  # must be in the future
}
"""Inputs whose validity depends on what JSON Schema cannot see: another input, the server's clock or settings."""


@schemathesis.check
def what_is_valid_is_accepted(context: Any, response: Any, case: Any) -> bool | None:
    """Like `positive_data_acceptance`, but exempt the ``RELATED`` inputs."""
    if response.status_code in {421, 422}:
        problem = msgspec.json.decode(response.content)
        asked = (case.operation.label, field := problem.get("field"))
        if asked in RELATED:
            return None
        # The schema of a batch does not check sums of counts, a null without its kind, or text in place of bytes.
        if asked[0] == INGEST and problem["detail"].startswith((f"{field}: ", "Expected `bytes`")):
            return None
    return positive_data_acceptance(context, response, case)


@schemathesis.serializer("application/msgpack")
def as_msgpack(_: object, value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except OverflowError:  # too large for msgpack: send JSON, which is not msgpack
        return msgspec.json.encode(value)


@pytest.fixture
def service(settings: Settings) -> Iterator[Service]:
    opened = Service(settings)
    yield opened
    asgi.shutdown_lifespans()
    opened.close()


def a_run(service: Service) -> tuple[str, str]:
    """The ids of a run with data for every route, and of its attempt."""
    trainer = Trainer(uuid4())
    records = [
        *trainer.updates(40, skipped=[3], sampled=[0, 20]),
        trainer.scalars({"loss": 1.0}),
        trainer.event("init"),
    ]
    service.store.ingest(trainer.batch(records), Sender("ada"))
    return str(trainer.run_id), str(trainer.attempt_id)


def described(service: Service, wanted: Callable[[str], bool]) -> Any:
    """The schema of the server's document for the ``wanted`` paths. Most requests for a run name a stored one."""
    app = create_app(service.settings, service)
    document = app.openapi()
    document["paths"] = {path: item for path, item in document["paths"].items() if wanted(path)}
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
    """Write 2.0 as 2, which strict decoders need for an integer; turn integers too large for msgpack into floats."""
    if isinstance(value, dict):
        return {name: whole(each) for name, each in value.items()}
    if isinstance(value, list):
        return [whole(each) for each in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value) if value == value // 1 and abs(value) < 2**63 else float(value)
    return value


def show(run: str, document: dict[str, Any]) -> None:
    """Make the run the example of every run parameter, except in DELETE: examples apply where no hook does."""
    for path in document["paths"].values():
        for method, operation in path.items():
            for each in operation.get("parameters", ()):
                if each["name"] == "runs":
                    each["example"] = [run]
                if each["name"] == "run_id" and method != "delete":
                    each["example"] = run


TOKEN_LEFT_OUT = "parameter `Authorization` in header - violates `required`"
"""A false alarm: the configured token is sent anyway. `test_walk.py` requests every route without one."""


def asked(document: Any) -> list[str]:
    """Send every request that the document allows, and return each deviation from it in words."""
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


def test_answers_match_the_document(service: Service) -> None:
    """Every route but the event stream answers with documented statuses, types and shapes, and never with a 5xx."""
    assert asked(described(service, lambda path: path != LIVE)) == []


def test_the_stream_matches_the_document(service: Service) -> None:
    """The event stream, ended as soon as it begins, answers as documented."""
    service.bus.close()
    assert asked(described(service, lambda path: path == LIVE)) == []


def test_a_failure_behind_two_calls_is_noticed(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stateful calls find a 5xx that occurs only when a token from an earlier call is revoked."""
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


def test_what_is_undocumented_is_noticed(service: Service) -> None:
    """An answer whose status the document omits is reported."""
    schema = described(service, lambda path: path == "/api/v1/runs/{run_id}/diagnosis")
    del schema.raw_schema["paths"]["/api/v1/runs/{run_id}/diagnosis"]["get"]["responses"]["200"]

    assert any("200" in each for each in asked(schema))
