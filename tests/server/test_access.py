"""Every route checks scopes and projects by one table, and revoked or expired tokens open nothing."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from fastapi import FastAPI
from sqlalchemy import update
from starlette.testclient import TestClient

from ampmon import wire
from ampmon_server.alerting.targets import Target
from ampmon_server.http.auth.access import OWN, SCOPE_OF, SCOPES, Scope, required_access
from ampmon_server.http.auth.keys import Keys
from ampmon_server.http.auth.tokens import Tokens
from ampmon_server.store import Judgement, Mute, Sender, Store
from ampmon_server.store.schema.tables import runs
from batches import Trainer, now
from receiver import alerts_to
from statements import statements
from waiting import DEADLINE_S


Client = Callable[..., TestClient]

# Per route, the scope it needs and what it covers: a `run` is hidden from tokens of other projects, `all` needs a token
# for every project, and `open` needs no authentication.
ROUTES = {
    "POST /api/v1/ingest": ("ingest", "run"),
    "GET /api/v1/runs": ("read", ""),
    "GET /api/v1/runs/groups": ("read", ""),
    "GET /api/v1/runs/scales": ("read", ""),
    "GET /api/v1/runs/losses": ("read", ""),
    "GET /api/v1/runs/{run_id}": ("read", "run"),
    "PATCH /api/v1/runs/{run_id}": ("ingest", "run"),
    "DELETE /api/v1/runs/{run_id}": ("ingest", "run"),
    "GET /api/v1/alerts": ("read", ""),
    "GET /api/v1/alerts/messages": ("read", ""),
    "GET /api/v1/alerts/targets": ("admin", "all"),
    "POST /api/v1/runs/{run_id}/alerts/{rule}/acknowledge": ("ingest", "run"),
    "POST /api/v1/runs/{run_id}/measurement": ("ingest", "run"),
    "GET /api/v1/mutes": ("read", ""),
    "POST /api/v1/mutes": ("ingest", "run"),
    "DELETE /api/v1/mutes/{mute_id}": ("ingest", "run"),
    "GET /api/v1/compare": ("read", ""),
    "GET /api/v1/compare/figures/{name}": ("read", "run"),
    "GET /api/v1/runs/{run_id}/updates": ("read", "run"),
    "GET /api/v1/runs/{run_id}/skips": ("read", "run"),
    "GET /api/v1/runs/{run_id}/skips/nearest": ("read", "run"),
    "GET /api/v1/runs/{run_id}/events": ("read", "run"),
    "GET /api/v1/runs/{run_id}/export": ("read", "run"),
    "GET /api/v1/runs/{run_id}/parameters": ("read", "run"),
    "GET /api/v1/runs/{run_id}/modules": ("read", "run"),
    "GET /api/v1/runs/{run_id}/scalars": ("read", "run"),
    "GET /api/v1/runs/{run_id}/diagnosis": ("read", "run"),
    "GET /api/v1/runs/{run_id}/simulate": ("read", "run"),
    "GET /api/v1/runs/{run_id}/whatif": ("read", "run"),
    "GET /api/v1/runs/{run_id}/figures/{name}": ("read", "run"),
    "GET /api/v1/live": ("read", ""),
    "POST /api/v1/login-links": (None, ""),
    "GET /api/v1/me": (None, ""),
    "POST /logout": (None, ""),
    "GET /api/v1/proof": (None, "open"),
    "GET /login": (None, "open"),
    "POST /login": (None, "open"),
    "GET /api/v1/tokens": ("admin", "all"),
    "POST /api/v1/tokens": ("admin", "all"),
    "DELETE /api/v1/tokens/{id}": ("admin", "all"),
    "GET /": ("read", ""),
    "GET /css/{version}/{name}": ("read", ""),
    "GET /roles.json": ("read", ""),
    "GET /js/{version}/{name}": ("read", ""),
    "GET /docs": ("read", ""),
    "GET /docs/{name:path}": ("read", ""),
    "GET /findings": ("read", ""),
    "GET /findings/{name}": ("read", ""),
    "GET /vendor/plotly.min.js": ("read", ""),
    "GET /healthz": (None, ""),
    "GET /readyz": (None, ""),
    "GET /metrics": ("read", ""),
    "GET /api/v1/openapi.json": ("read", ""),
}
NAMES = {"figures": "scale", "css": "base.css", "js": "main.js", "vendor": "plotly.min.js"}
PROJECTS = {"own": ["vision"], "other": ["speech"], "all": None}


@pytest.fixture
def store(app: FastAPI, stranger: TestClient) -> Store:
    """The store of the running app."""
    return app.state.service.store


def trained(store: Store, project: str = "vision", owner: str = "ada") -> UUID:
    """A run with data for every route."""
    trainer = Trainer(uuid4(), project=project)
    records = [
        *trainer.updates(40, skipped=[3], sampled=[0, 20]),
        trainer.scalars({"loss": 1.0}),
        trainer.event("measurable", stream=trainer.scaler),
    ]
    store.ingest(trainer.batch(records), Sender(owner))
    return trainer.run_id


def alarmed(store: Store, run_id: UUID) -> None:
    """Make an alert of the run fire."""
    finding = wire.Finding(rule="skip_rate", severity="critical", title="bad", explanation="")
    with store._engine.begin() as connection:
        connection.execute(update(runs).values(last_time=now()))
    store.keep(
        run_id,
        Judgement("bad", "critical", [finding]),
        alerts_to(Target(name="own", url="json://127.0.0.1")),
    )


def walked(app: FastAPI) -> dict[str, Scope | None]:
    """The scope of every method and path of the app."""
    return {
        f"{method} {route.path}": SCOPE_OF[required_access(route)]  # type: ignore[attr-defined]
        for route in app.routes
        for method in route.methods  # type: ignore[attr-defined]
    }


class Walk:
    """Requests each route once, for a run of the project `vision` owned by ada."""

    def __init__(self, app: FastAPI, store: Store) -> None:
        self._service = app.state.service
        self._store = store
        self._run = trained(store)
        alarmed(store, self._run)
        self._made = 0

    def ask(self, client: TestClient, call: str) -> Any:
        method, _, path = call.partition(" ")
        self._made += 1
        run_id = trained(self._store) if method == "DELETE" and "{run_id}" in path else self._run
        folder = path.replace("/{version}", "").rpartition("/")[0].rpartition("/")[2]
        path = path.replace(":path", "").format(
            run_id=run_id,
            name=NAMES.get(folder, "overflow"),
            version="1",
            id=self._token(path),
            rule="skip_rate",
            mute_id=self._mute(path),
        )
        return client.request(method, path, **self._with(call, run_id))

    def _token(self, path: str) -> str:
        if "{id}" not in path:
            return ""
        return self._service.tokens.new(f"made-{self._made}", "ada", ["read"])[1].id

    def _mute(self, path: str) -> str:
        if "{mute_id}" not in path:
            return ""
        kept, _ = self._store.mute(Mute(self._run, None, None, None), "ada")
        return str(kept.mute_id)

    def _with(self, call: str, run_id: UUID) -> dict[str, Any]:
        name = f"new-{self._made}"
        if call == "POST /api/v1/ingest":
            trainer = Trainer(run_id, project="vision", resume_step=40)
            records = [*trainer.updates(1), trainer.event("measurable", stream=trainer.scaler)]
            content = wire.encode(trainer.batch(records))
            return {"content": content, "headers": {"Content-Type": "application/msgpack"}}
        given: Mapping[str, dict[str, Any]] = {
            "POST /api/v1/tokens": {"json": {"name": name, "owner": "ada", "scopes": ["read"]}},
            "POST /api/v1/mutes": {"json": {"run_id": str(run_id), "rule": "skip_rate"}},
            "PATCH /api/v1/runs/{run_id}": {"json": {"archived": False}},
            "GET /api/v1/runs/{run_id}/skips/nearest": {"params": {"side": "after"}},
            "GET /api/v1/alerts/messages": {"params": {"sent": False}},
        }
        of_runs = any(word in call for word in ("compare", "scales", "losses"))
        params = {"params": {"runs": str(run_id)}} if of_runs else {}
        return given.get(call, params)


@pytest.fixture
def walk(app: FastAPI, store: Store) -> Walk:
    app.state.service.bus.close()  # so that the live stream ends at once
    return Walk(app, store)


def test_every_route_is_in_the_table(app: FastAPI) -> None:
    """The table lists every route of the app with its scope, and nothing else."""
    assert walked(app) == {call: scope for call, (scope, _) in ROUTES.items()}


HOLDING = [
    ("read", "own"),
    ("read", "other"),
    ("ingest", "other"),
    ("admin", "own"),
    ("admin", "all"),
]
if "EVERYTHING" in os.environ:
    HOLDING += [("ingest", "own"), ("admin", "other"), ("ingest", "all")]
"""Scopes and projects of tokens. An admin of every project also covers reading every project."""
ASKED = [call for call, (_, whose) in ROUTES.items() if whose != "open"]


def expected(call: str, scope: str, projects: str, status: int) -> int:
    """The status the table demands. ``status`` is the answer to the data directory's own token."""
    needed, whose = ROUTES[call]
    if needed is not None and scope not in {needed, "admin"}:
        return 403
    if whose == "run" and projects == "other":
        return 404
    return 403 if whose == "all" and projects != "all" else status


def test_the_table_holds(walk: Walk, client: TestClient, holding: Client) -> None:
    """A token without the scope gets 403 and the scope's name, and a run of another project gives 404.

    Any other call is answered like the data directory's own token.
    """
    usual = {call: walk.ask(client, call).status_code for call in ASKED}
    assert {call for call, status in usual.items() if status >= 400} <= {
        "GET /readyz",  # the bus is closed
        "GET /docs/{name:path}",
        "GET /findings/{name}",
        "GET /api/v1/runs/{run_id}/modules",
    }
    for scope, which in HOLDING:
        known = holding(scope, projects=PROJECTS[which])
        for call in ASKED:
            answer = walk.ask(known, call)
            wanted = expected(call, scope, which, usual[call])
            assert answer.status_code == wanted, (call, scope, which, answer.text)
            if wanted == 403 and answer.content:
                assert answer.json()["scope"] == ROUTES[call][0]


def test_none_of_a_bad_token(app: FastAPI, walk: Walk, stranger: TestClient) -> None:
    """Every route gives the same 401 for a missing, unknown, expired, revoked or truncated token."""
    tokens = app.state.service.tokens
    past = Tokens(app.state.service.store, clock=lambda: time.time() - 100)
    expired, _ = past.new("expired", "ada", SCOPES, expires=round((time.time() - 50) * 1e6))
    past.close()
    revoked, _ = tokens.new("revoked", "ada", SCOPES)
    tokens.revoke("revoked")
    bad = [None, "ampmon_unknown", expired, revoked, revoked[:-1]]
    for call in ASKED:
        texts = set()
        for each in bad:
            stranger.headers.pop("Authorization", None)
            if each is not None:
                stranger.headers["Authorization"] = f"Bearer {each}"
            answer = walk.ask(stranger, call)
            assert answer.status_code == 401, (call, each)
            texts.add(answer.text)
        assert len(texts) == 1


def test_another_projects_run_is_as_none(holding: Client, store: Store) -> None:
    """A run of another project gives the same 404 as a run that does not exist, and stays unchanged."""
    hidden, none = trained(store, "speech"), uuid4()
    known = holding("admin", projects=["vision"])
    for method, path in [call.split() for call in ROUTES if "/{run_id}" in call]:
        answers = [
            known.request(
                method,
                path.format(run_id=run_id, name="scale", rule="skip_rate"),
                json={} if method == "PATCH" else None,
            )
            for run_id in (hidden, none)
        ]
        assert {each.status_code for each in answers} == {404}, path
        assert answers[0].text.replace(str(hidden), "") == answers[1].text.replace(str(none), "")
    assert store.run(hidden)[0].version == 1


def test_lists_show_the_callers_projects(holding: Client, store: Store) -> None:
    """The run list, groups, scales, losses and comparisons show only runs of the token's projects."""
    mine, hidden = trained(store), trained(store, "speech")
    known, both = holding("read", projects=["vision"]), f"{hidden},{mine}"
    listed = known.get("/api/v1/runs").json()
    compared = known.get(f"/api/v1/compare?runs={both}").json()["runs"]

    assert ([each["run_id"] for each in listed["runs"]], listed["total"]) == ([str(mine)], 1)
    assert known.get("/api/v1/runs?project=speech").json()["total"] == 0
    assert known.get("/api/v1/runs/groups").json()["projects"] == {"vision": 1}
    assert set(known.get(f"/api/v1/runs/scales?runs={both}").json()) == {str(mine)}
    assert set(known.get(f"/api/v1/runs/losses?runs={both}").json()) == {str(mine)}
    assert [each and each["run_id"] for each in compared] == [None, str(mine)]
    assert len(holding("read").get("/api/v1/runs").json()["runs"]) == 2


def test_only_its_owner_changes_a_run(holding: Client, store: Store) -> None:
    """Only its owner and `admin` change a run. Another token gets 403, or 404 if it cannot read the run."""
    run_id = trained(store)
    path = f"/api/v1/runs/{run_id}"
    reader, writer = holding("ingest", "read", owner="eve"), holding("ingest", owner="eve")

    assert reader.patch(path, json={"name": "mine"}).json()["scope"] == "admin"
    assert [reader.delete(path).status_code, writer.delete(path).status_code] == [403, 404]
    assert writer.delete(path).json()["detail"] == f"There is no run {run_id}."
    assert holding("ingest", owner="ada").patch(path, json={"name": "new"}).status_code == 200
    assert holding("admin", owner="eve").delete(path).status_code == 204


def sent(client: TestClient, batch: wire.Batch) -> Any:
    headers = {"Content-Type": "application/msgpack"}
    return client.post("/api/v1/ingest", content=wire.encode(batch), headers=headers)


def test_only_tokens_of_its_owner_append_to_a_run(
    client: TestClient, holding: Client, store: Store
) -> None:
    """Only tokens of a run's owner, `admin` and the data directory append to it. Others get 404 and change nothing."""
    run_id = trained(store)
    before = store.run(run_id)
    late = Trainer(run_id, project="vision", resume_step=40)
    batch = late.batch(late.updates(2), ended="crashed")
    for scopes in (("ingest",), ("ingest", "read")):
        answer = sent(holding(*scopes, owner="eve"), batch)
        assert (answer.status_code, str(run_id) in answer.json()["detail"]) == (404, True)
    assert store.run(run_id) == before

    writers = (holding("ingest", owner="ada"), holding("admin", owner="eve"), client)
    for number, known in enumerate(writers):
        trainer = Trainer(run_id, project="vision", resume_step=40 + number)
        assert sent(known, trainer.batch(trainer.updates(1))).status_code == 200
        assert store.run(run_id)[0].version == before[0].version + number + 1
    assert store.subject(run_id).owner == "ada"


def test_what_comes_in_is_the_tokens(holding: Client, store: Store) -> None:
    """A new run belongs to the owner of its token. The server rejects a run of a project outside the token's."""
    known = holding("ingest", owner="grace", projects=["vision"])
    answers = []
    for project in ("vision", "speech"):
        trainer = Trainer(uuid4(), project=project)
        answers.append(sent(known, trainer.batch(trainer.updates(1))))

    assert [each.status_code for each in answers] == [200, 404]
    detail = answers[1].json()["detail"]
    assert "of this token's owner and projects" in detail
    assert "set AMPMON_PROJECT" in detail
    (run,) = store.runs().rows
    assert (run.owner, run.project) == ("grace", "vision")


def test_a_browser_is_let_in_as_who_made_its_link(
    app: FastAPI, holding: Client, stranger: TestClient, store: Store
) -> None:
    """A browser's cookie, session and unused codes have the rights of their token and end when it is revoked."""
    trained(store), trained(store, "speech")
    known = holding("read", projects=["vision"])
    link, code, unused = (known.post("/api/v1/login-links").json()["url"] for _ in range(3))
    assert stranger.get(link).status_code == 303
    headers = {"Origin": str(stranger.base_url)}
    key = {"key": code.partition("code=")[2], "memory": True}
    session = stranger.post("/login", json=key, headers=headers).json()["session"]
    held = {"Authorization": f"Bearer {session}"}
    for carried in ({}, held):
        assert stranger.get("/api/v1/runs", headers=carried).json()["total"] == 1
        assert stranger.get("/api/v1/tokens", headers=carried).status_code == 403
    secret = {"key": known.headers["Authorization"].split()[1]}
    assert stranger.post("/login", json=secret, headers=headers).status_code == 204
    app.state.service.tokens.revoke("token-0")
    for carried in ({}, held):
        assert stranger.get("/api/v1/runs", headers=carried).status_code == 401
    assert stranger.get(unused).status_code == 401
    assert stranger.post("/login", json=secret, headers=headers).status_code == 401


def test_a_cookie_says_whose_it_is(tmp_path: Path) -> None:
    """A cookie names its token, the data directory's own by default, and cannot be forged for another."""
    keys, holder = Keys.load(tmp_path), "0123456789ab"
    expiry, _, signature = keys.sign("cookie", holder, now=1000.0).split(".")
    forged = [
        f"{expiry}.{signature}",
        f"{expiry} for {holder}.{signature}",
        f"{expiry}.own.{signature}",
        f"{expiry}.{holder[::-1]}.{signature}",
        f"{expiry}..{holder}.{signature}",
        f"9{expiry}.{holder}.{signature}",
        keys.sign("session", holder, now=1000.0),
    ]

    assert keys.holder("cookie", f"{expiry}.{holder}.{signature}", now=1001.0) == holder
    assert keys.holder("cookie", keys.sign("cookie", now=1000.0), now=1001.0) == OWN
    assert [keys.holder("cookie", each, now=1001.0) for each in forged] == [None] * len(forged)


def asked(client: TestClient, paths: Sequence[str]) -> list[str]:
    """The SELECT statements that some paths cause, without those on tokens."""
    with statements() as executed:
        for path in paths:
            assert client.get(path).status_code == 200
    return [each for each in executed if each.startswith("SELECT") and "FROM tokens" not in each]


def test_who_sees_every_project_pays_nothing(
    client: TestClient, holding: Client, store: Store
) -> None:
    """A token for all projects causes the same queries as the data directory's own token; one for some causes more."""
    run_id = trained(store)
    paths = [f"/api/v1/runs/{run_id}{rest}" for rest in ("", "/updates", "/skips", "/diagnosis")]
    paths += ["/api/v1/runs", "/api/v1/runs/groups", f"/api/v1/compare?runs={run_id}"]

    assert asked(holding("read"), paths) == asked(client, paths)
    assert len(asked(holding("read", projects=["vision"]), paths)) > len(asked(client, paths))


def test_a_database_that_is_locked_holds_up_nobody_who_reads(
    app: FastAPI, holding: Client, store: Store
) -> None:
    """A token works while the database is locked. Its time of last use is written once the lock is released."""
    known = holding("read")
    file = sqlite3.connect(str(store._engine.url.database), isolation_level=None)
    file.execute("BEGIN IMMEDIATE")
    noting, gate = app.state.service.tokens._noting, threading.Event()
    noting.submit(gate.wait, DEADLINE_S)  # holds back the write until the answer is there
    assert known.get("/api/v1/runs").status_code == 200
    gate.set()
    assert [each.last_used for each in store.tokens()] == [None]
    file.execute("ROLLBACK")
    file.close()
    noting.submit(int).result()
    assert [each.last_used is None for each in store.tokens()] == [False]


@pytest.mark.parametrize("path", ["/api/v1/tokens", "/api/v1/alerts/targets"])
def test_a_line_break_in_a_path_opens_nothing(holding: Client, path: str) -> None:
    """A path that ends in a line break or another control character gives 404."""
    known = holding("read")
    for odd in ("%0A", "%0D", "%00", "%7F", "%C2%85", "%E2%80%A8"):
        assert known.get(f"{path}{odd}").status_code == 404, odd
