"""What is wrong with a run, judged anew from what is stored."""

from __future__ import annotations

from dataclasses import asdict
from uuid import UUID

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from ampmon_server.auth.access import requires
from ampmon_server.diagnosis import diagnose, effective
from ampmon_server.notices import notices_of
from ampmon_server.routes.answers import ServiceDependency, tagged_json
from ampmon_server.routes.callers import OF_RUN


router = APIRouter(prefix="/api/v1/runs/{run_id}", dependencies=[OF_RUN])


@router.get("/diagnosis")
@requires("read")
def show_diagnosis(run_id: UUID, request: Request, service: ServiceDependency) -> Response:
    """Diagnose a run: its verdict, and its findings with their fixes, the worst first.

    ``notices`` are what to know before trusting the run: data that is missing, a monitor that failed.
    """
    case = service.store.case(run_id)
    diagnosis = diagnose(case, service.settings.thresholds)
    run = service.store.run(run_id)[0]
    gaps_told = any(each.rule == "telemetry_gaps" for each in diagnosis.findings)
    answer = {
        "run_id": case.run_id,
        "version": case.version,
        "verdict": diagnosis.verdict,
        "severity": diagnosis.severity,
        "findings": [msgspec.structs.asdict(each) for each in diagnosis.findings],
        "failed": sorted(diagnosis.failed),
        "notices": notices_of(asdict(run), gaps_told, sorted(diagnosis.failed)),
        "training": asdict(effective(case)),
    }
    return tagged_json(answer, request)
