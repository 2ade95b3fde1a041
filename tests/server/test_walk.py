"""Every route, caller and spelling: each answer follows from the access that the route declares."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import isasyncgenfunction, iscoroutinefunction
from uuid import UUID, uuid4

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.testclient import TestClient

from ampmon_server.http.auth import guard
from ampmon_server.http.auth.access import SCOPE_OF, Caller, required_access
from ampmon_server.http.routes import figures
from ampmon_server.http.service import OF_OWN_RUN, OF_RUN, OVER_ALL
from ampmon_server.store import Sender
from batches import Trainer
from exact import ask_each


METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE")
ALL = None
CALLERS: Mapping[str, Caller | None] = {
    "no token": None,
    "revoked": None,
    "read": Caller("ada", frozenset({"read"}), ALL, ""),
    "ingest": Caller("eve", frozenset({"ingest"}), ALL, ""),
    "other owner": Caller("eve", frozenset({"ingest", "read"}), ALL, ""),
    "other project": Caller("ada", frozenset({"admin"}), frozenset({"speech"}), ""),
}
"""Callers who request a run of ada's in the project `vision`; None for an unknown caller."""


@pytest.fixture(autouse=True)
def _nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "STRANGERS_WAIT_S", 0.0)


@pytest.fixture
def running(app: FastAPI, stranger: TestClient) -> FastAPI:
    app.state.service.bus.close()  # so that an event stream ends at once
    return app


@pytest.fixture
def authorizations(running: FastAPI) -> dict[str, bytes | None]:
    """The Authorization header that each caller sends."""
    tokens = running.state.service.tokens
    found: dict[str, bytes | None] = {"no token": None}
    for name, caller in CALLERS.items():
        if name == "no token":
            continue
        like = caller or Caller("ada", frozenset({"admin"}), ALL, "")
        label = name.replace(" ", "-")
        secret, _ = tokens.new(label, like.owner or "", like.scopes, like.projects)
        found[name] = f"Bearer {secret}".encode()
    tokens.revoke("revoked")
    return found


@pytest.fixture
def run_id(running: FastAPI) -> UUID:
    trainer = Trainer(uuid4(), project="vision")
    running.state.service.store.ingest(trainer.batch(trainer.updates(3)), Sender("ada"))
    return trainer.run_id


def routes_of(app: FastAPI) -> list[APIRoute]:
    """All routes; nothing may be mounted beside them."""
    assert all(type(route) is APIRoute for route in app.routes)
    return [route for route in app.routes if isinstance(route, APIRoute)]


def path_of(route: APIRoute, run_id: UUID) -> str:
    return route.path.replace(":path}", "}").format(
        run_id=run_id, version=1, name="scale", rule="skip_rate", id="0" * 12, mute_id=UUID(int=1)
    )


def expected(route: APIRoute, caller: Caller | None) -> int | None:
    """The status with which a route refuses a caller; None where it does not."""
    access, asked = required_access(route), route.dependencies
    if access == "public":
        return None
    if caller is None:
        return 401
    scope = SCOPE_OF[access]
    if scope is not None and not caller.may(scope):
        return 403
    of_run = OF_RUN in asked or OF_OWN_RUN in asked
    if caller.projects is not None and (of_run or OVER_ALL in asked):
        return 404 if of_run else 403
    if OF_OWN_RUN in asked and caller.owner != "ada" and not caller.may("admin"):
        return 403 if caller.may("read") else 404
    return None


def test_every_route_names_its_access(running: FastAPI) -> None:
    """Every route declares its access, and one that does not needs `admin`."""
    undeclared = [
        route.path for route in routes_of(running) if not hasattr(route.endpoint, "ampmon_access")
    ]
    assert undeclared == []
    running.add_api_route("/new", lambda: None)
    service = running.state.service
    asked = {}
    for scope in ("read", "admin"):
        secret, _ = service.tokens.new(scope, "ada", [scope])
        asked |= {scope: ask_each(running, "GET", ["/new"], f"Bearer {secret}".encode())["/new"]}
    assert {scope: status for scope, (status, _, _) in asked.items()} == {"read": 403, "admin": 200}


def test_each_route_refuses_whom_its_access_says(
    running: FastAPI, authorizations: dict[str, bytes | None], run_id: UUID
) -> None:
    """Each route refuses exactly the callers without its scope, project or run."""
    for route in routes_of(running):
        path = path_of(route, run_id)
        for name, caller in CALLERS.items():
            (method,) = route.methods or ()
            status, _, _ = ask_each(running, method, [path], authorizations[name])[path]
            wanted = expected(route, caller)
            if wanted is not None:
                assert status == wanted, (method, path, name)
            elif required_access(route) != "public":
                assert status not in {401, 403}, (method, path, name)


def test_no_other_spelling_reaches_a_route(
    running: FastAPI, authorizations: dict[str, bytes | None], run_id: UUID
) -> None:
    """Another spelling of a path gets a 404, or a 401 from an unknown caller."""
    for route in routes_of(running):
        path = path_of(route, run_id)
        whole = path in {"/", "/docs"} or route.path.endswith(":path}")  # with a slash it is a page
        ends = ("\n", "\0") if whole else ("\n", "\0", "/")
        odd = [f"{path}{end}" for end in ends] + [f"/{path}", f"/.{path}"]
        (method,) = route.methods or ()
        for name, caller in CALLERS.items():
            seen = ask_each(running, method, odd, authorizations[name])
            wanted = dict.fromkeys(odd, 401 if caller is None else 404)
            assert {each: status for each, (status, _, _) in seen.items()} == wanted, (method, name)


def test_no_other_method_reaches_a_route(
    running: FastAPI, authorizations: dict[str, bytes | None], run_id: UUID
) -> None:
    """A method that a path does not have gets 401 for unknown callers, and 403, 404 or 405 for others."""
    paths = {path_of(route, run_id) for route in routes_of(running)}
    for method in METHODS:
        own = {
            path_of(each, run_id) for each in routes_of(running) if method in (each.methods or ())
        }
        for name, caller in CALLERS.items():
            for path, (status, _, _) in ask_each(
                running, method, sorted(paths - own), authorizations[name]
            ).items():
                assert status in ({401} if caller is None else {403, 404, 405}), (
                    method,
                    path,
                    name,
                )


def test_only_what_asks_the_store_takes_a_thread(app: FastAPI) -> None:
    """One dependency is not a coroutine; FastAPI runs it on another thread, at a tenth of a request's time."""
    found, waiting = set(), [each.dependant for each in app.routes if isinstance(each, APIRoute)]
    while waiting:
        for each in waiting.pop().dependencies:
            waiting.append(each)
            if not (iscoroutinefunction(each.call) or isasyncgenfunction(each.call)):
                found.add(each.call)
    assert found == {figures._compared}
