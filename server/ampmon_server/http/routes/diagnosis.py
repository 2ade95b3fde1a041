"""The diagnosis of a run, computed anew from the stored data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any
from uuid import UUID

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from ampmon_server.analysis.diagnosis.diagnose import diagnose
from ampmon_server.analysis.diagnosis.effective import effective
from ampmon_server.analysis.diagnosis.measured import RULES
from ampmon_server.background.bus import Advance
from ampmon_server.http.auth.access import requires
from ampmon_server.http.routes.answers import ServiceDependency, tagged_json
from ampmon_server.http.routes.callers import OF_OWN_RUN, OF_RUN
from ampmon_server.model.case import Case
from ampmon_server.model.notices import notices_of


router = APIRouter(prefix="/api/v1/runs/{run_id}", dependencies=[OF_RUN])


@router.get("/diagnosis")
@requires("read")
def show_diagnosis(run_id: UUID, request: Request, service: ServiceDependency) -> Response:
    """Diagnose a run: its verdict, and its findings with their fixes, the worst first.

    ``notices`` are what to know before trusting the run: data that is missing, a monitor that failed. ``measurement``
    is null if the script allows none. Else ``asked`` is when a pending one was requested, or null, and ``rules`` are
    the findings that it is about.
    """
    case = service.store.case(run_id)
    diagnosis = diagnose(case, service.settings.thresholds)
    run = service.store.run(run_id)[0]
    gaps_found = any(each.rule == "telemetry_gaps" for each in diagnosis.findings)
    answer = {
        "run_id": case.run_id,
        "version": case.version,
        "verdict": diagnosis.verdict,
        "severity": diagnosis.severity,
        "findings": [msgspec.structs.asdict(each) for each in diagnosis.findings],
        "failed": sorted(diagnosis.failed),
        "notices": notices_of(asdict(run), gaps_found, sorted(diagnosis.failed)),
        "training": asdict(effective(case)),
        "measurement": _measurement(case),
    }
    return tagged_json(answer, request)


@router.post("/measurement", status_code=204, dependencies=[OF_OWN_RUN])
@requires("ingest")
async def ask_for_measurement(run_id: UUID, service: ServiceDependency) -> Response:
    """Ask the trainer how far fp16 changes each module's gradient. 404 if its script allows no measurement.

    The trainer measures at most once an hour, and within its budget. The diagnosis then tells the result.
    """
    service.bus.publish(Advance(*await service.writer.run(lambda: service.store.ask(run_id))))
    return Response(status_code=204)


def _measurement(case: Case) -> dict[str, Any] | None:
    if case.measurement is None:
        return None
    return {"asked": case.measurement or None, "rules": sorted(RULES)}
