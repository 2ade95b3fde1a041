"""Alerts: their states, messages and acknowledgements, mutes, and the state of targets."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated
from uuid import UUID

import msgspec
from anyio import to_thread
from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from ampmon import wire
from ampmon_server.alerting.delivery import words
from ampmon_server.http.auth.access import Caller, requires
from ampmon_server.http.problems import problem, refusals
from ampmon_server.http.routes.answers import (
    delivery_json,
    json_answer,
    standings_json,
    tagged_json,
)
from ampmon_server.http.routes.bodies import read_json, takes
from ampmon_server.http.routes.parameters import Limit
from ampmon_server.http.service import (
    OF_OWN_RUN,
    OVER_ALL,
    CallerDependency,
    NotAllowed,
    Service,
    ServiceDependency,
    check_own,
)
from ampmon_server.store import Mute, NotFound


router = APIRouter(prefix="/api/v1")

_BODY_BYTES_MAX = 4096
LISTED_MAX = 1000
MESSAGES = 100
OPERATOR = "the operator"
"""The name of a caller with the data directory's own token, which has no owner."""

_RULE = r"[a-z0-9_]{1,64}"
Rule = Annotated[str, Path(pattern=rf"^{_RULE}$")]


class _WantedMute(msgspec.Struct, forbid_unknown_fields=True):
    """A mute to create: of a run, a project or everything, and of one rule or all. ``until`` is null for forever."""

    run_id: UUID | None = None
    project: wire.Name | None = None
    rule: Annotated[str, msgspec.Meta(pattern=rf"\A{_RULE}\Z")] | None = None
    until: Annotated[int, msgspec.Meta(ge=0, le=wire.COUNT_MAX)] | None = None


@router.get("/alerts")
@requires("read")
def list_alerts(request: Request, service: ServiceDependency, caller: CallerDependency) -> Response:
    """List the newest 1000 alerts that are pending or fire, of all runs that the caller sees.

    Each comes with its deliveries and its mute. `configured`: whether this server has targets to send to.
    """
    found = service.store.open_alerts(LISTED_MAX, caller.projects)
    listed = [
        {**subject._asdict(), **each} for subject, stand in found for each in standings_json(stand)
    ]
    return tagged_json(
        {"configured": service.settings.alerts is not None, "alerts": listed}, request
    )


@router.get("/alerts/messages")
@requires("read")
def list_messages(
    request: Request,
    service: ServiceDependency,
    caller: CallerDependency,
    sent: bool,
    limit: Limit = MESSAGES,
) -> Response:
    """List the newest messages of the last seven days that were sent, or that failed or wait, and their total.

    `due` is the next attempt; without one, the server gave up.
    """
    found = service.store.messages(limit, caller.projects, sent=sent)
    listed = [
        {
            **subject._asdict(),
            "rule": each.rule,
            "title": title,
            "made": each.made,
            **delivery_json(each),
        }
        for subject, title, each in found.messages
    ]
    return tagged_json({"messages": listed, "total": found.total}, request)


@router.get("/alerts/targets", dependencies=[OVER_ALL])
@requires("admin")
def list_targets(service: ServiceDependency) -> Response:
    """List the targets of alerts, each with waiting messages, the last one sent, and the last error."""
    alerts = service.settings.alerts
    stand = service.store.target_states()
    listed = []
    for target in () if alerts is None else alerts.targets:
        at = stand.get(target.name)
        listed.append(
            {
                "name": target.name,
                "kind": target.scheme,
                "least": target.least,
                "projects": None if target.projects is None else sorted(target.projects),
                "waiting": at.waiting if at else 0,
                "sent": at.sent if at else None,
                "trouble": words(at.trouble, at.status) if at and at.trouble else None,
            }
        )
    return json_answer({"targets": listed})


@router.post("/runs/{run_id}/alerts/{rule}/acknowledge", status_code=204, dependencies=[OF_OWN_RUN])
@requires("ingest")
async def acknowledge(
    run_id: UUID, rule: Rule, service: ServiceDependency, caller: CallerDependency
) -> Response:
    """Acknowledge an alert until it gets worse or ends. 404 if the rule has no alert that is pending or fires."""
    who = _name_of(caller)
    service.publish(await service.writer.run(lambda: service.store.acknowledge(run_id, rule, who)))
    return Response(status_code=204)


@router.get("/mutes")
@requires("read")
def list_mutes(service: ServiceDependency, caller: CallerDependency) -> Response:
    """List the mutes of projects that the caller sees, newest first, with name and owner of their runs."""
    listed = [
        {
            **asdict(mute),
            "name": None if run is None else run.name,
            "owner": None if run is None else run.owner,
        }
        for mute, run in service.store.mutes(caller.projects)
    ]
    return json_answer({"mutes": listed})


@router.post(
    "/mutes", status_code=201, responses=refusals(404, 408, 413), openapi_extra=takes(_WantedMute)
)
@requires("ingest")
async def make_mute(
    request: Request, service: ServiceDependency, caller: CallerDependency
) -> Response:
    """Mute notifications of a run, a project, a rule or everything. Without `admin`, only of your own run."""
    wanted = await read_json(request, service.settings, _WantedMute, _BODY_BYTES_MAX)
    if wanted.until is not None and wanted.until <= time.time() * 1e6:
        return problem(422, "The end of the mute is in the past.", field="until")
    if wanted.run_id is not None and wanted.project is not None:
        return problem(422, "Send a run or a project, not both.", field="project")
    await _check_mutes(service, caller, wanted.run_id, wanted.project)
    mute = Mute(wanted.run_id, wanted.project, wanted.rule, wanted.until)
    who = _name_of(caller)
    kept, change = await service.writer.run(lambda: service.store.mute(mute, who))
    service.publish(change)
    return json_answer(kept, status=201)


@router.delete("/mutes/{mute_id}", status_code=204)
@requires("ingest")
async def lift_mute(
    mute_id: UUID, service: ServiceDependency, caller: CallerDependency
) -> Response:
    """Remove a mute. Needs the same access as creating it."""
    mute = await to_thread.run_sync(service.store.find_mute, mute_id)
    hidden = NotFound(f"There is no mute {mute_id}.")
    if mute.project is not None and not caller.sees(mute.project):
        raise hidden
    try:
        await _check_mutes(service, caller, mute.run_id, mute.project)
    except NotFound:  # it would name the run, which the caller may not see
        raise hidden from None
    service.publish(await service.writer.run(lambda: service.store.lift(mute)))
    return Response(status_code=204)


async def _check_mutes(
    service: Service, caller: Caller, run_id: UUID | None, project: str | None
) -> None:
    """Raise NotAllowed if the caller may not mute this, NotFound for a run that the caller does not see."""
    if run_id is not None:
        await check_own(run_id, caller, service)
    elif not caller.may("admin"):
        raise NotAllowed("Muting more than one run needs a token with the scope `admin`.")
    elif caller.projects is not None and project not in caller.projects:
        raise NotAllowed("This needs a token with the scope `admin` over the projects to mute.")


def _name_of(caller: Caller) -> str:
    return caller.owner or OPERATOR
