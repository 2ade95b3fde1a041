"""What is computed from a run's stored data: its diagnosis, replays of other policies, estimates at other scales."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any
from uuid import UUID

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from ampmon_server.analysis.diagnosis.diagnose import diagnose
from ampmon_server.analysis.diagnosis.effective import effective
from ampmon_server.analysis.diagnosis.underflow import MEASURED_RULES
from ampmon_server.analysis.policy.scalers import Kind
from ampmon_server.analysis.policy.simulate import advise
from ampmon_server.analysis.policy.simulation import Share, Simulation
from ampmon_server.analysis.whatif import FORMATS, best, curve
from ampmon_server.http.auth.access import requires
from ampmon_server.http.routes.answers import tagged_json
from ampmon_server.http.routes.parameters import ParameterName, StreamNumber, setting
from ampmon_server.http.service import OF_OWN_RUN, OF_RUN, ServiceDependency
from ampmon_server.model.case import Case
from ampmon_server.model.notices import answer_of, keys_of, notices_of, where_of
from ampmon_server.queries.whatif_reader import measured, recommended, simulator_of, tried
from ampmon_server.store import NotFound


router = APIRouter(prefix="/api/v1/runs/{run_id}", dependencies=[OF_RUN])


@router.get("/diagnosis")
@requires("read")
def show_diagnosis(run_id: UUID, request: Request, service: ServiceDependency) -> Response:
    """Diagnose a run: its verdict, and its findings with their fixes, the worst first.

    ``notices`` are what to know before trusting the run: data that is missing, a monitor that failed. ``measurement``
    is null if the script allows none. Else ``asked`` is when a pending one was requested, or null, and ``rules`` are
    the findings that it is about. ``answer`` is the verdict in one line, and ``updates`` how many the run had then.
    A finding's ``key`` stays the same while its numbers change, and ``where`` has its scaler and parameters in words.
    """
    case = service.store.case(run_id)
    diagnosis = diagnose(case, service.settings.thresholds)
    run = service.store.run(run_id)[0]
    several = len({each["scaler"] for each in run.streams}) > 1
    gaps_found = any(each.rule == "telemetry_gaps" for each in diagnosis.findings)
    answer = {
        "run_id": case.run_id,
        "version": case.version,
        "verdict": diagnosis.verdict,
        "severity": diagnosis.severity,
        "answer": answer_of(diagnosis.findings, run.updates),
        "updates": run.updates,
        "findings": [
            {**msgspec.structs.asdict(each), "key": key, "where": where_of(each, several)}
            for each, key in zip(diagnosis.findings, keys_of(diagnosis.findings), strict=True)
        ],
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
    service.publish(await service.writer.run(lambda: service.store.ask(run_id)))
    return Response(status_code=204)


def _measurement(case: Case) -> dict[str, Any] | None:
    if case.measurement is None:
        return None
    return {"asked": case.measurement or None, "rules": sorted(MEASURED_RULES)}


@router.get("/simulate")
@requires("read")
def simulate(  # noqa: PLR0913, PLR0917 - one argument per query parameter
    run_id: UUID,
    request: Request,
    service: ServiceDependency,
    init_scale: Annotated[float | None, setting("init_scale")] = None,
    growth_factor: Annotated[float | None, setting("growth_factor")] = None,
    backoff_factor: Annotated[float | None, setting("backoff_factor")] = None,
    growth_interval: Annotated[int | None, setting("growth_interval")] = None,
    policy: Annotated[
        Kind,
        Query(
            description="The policy to replay. With `torch`, settings that are not given are the run's."
        ),
    ] = "torch",
    stream: StreamNumber = None,
) -> Response:
    """Replay the newest 200 000 updates of a run under another policy, and recommend settings.

    ``skips`` are bounded by ``low`` and ``high``. If those are too far apart, ``known`` is false: the result is
    inconclusive, and fractions are bounded only at a fixed scale. ``recommended`` is what the run's findings recommend.
    Without that it is the best setting found, and its ``second`` says why that is only an alternative.
    """
    simulator = simulator_of(service.store, run_id, stream)
    history = simulator.history
    given = {
        "policy": policy,
        "init_scale": init_scale,
        "growth_factor": growth_factor,
        "backoff_factor": backoff_factor,
        "growth_interval": growth_interval,
    }
    setting = tried(history, given)
    advised = recommended(service.store, run_id, service.settings.thresholds, stream)
    advice = advise(simulator, advised)
    answer = {
        "run_id": str(run_id),
        "whole": history.is_whole,
        "first": history.first,
        "last": history.last,
        "updates": history.replayed,
        "recorded": simulation_json(simulator.recorded()),
        "simulated": simulation_json(simulator.run(setting)),
        "recommended": {
            **simulation_json(advice.simulation),
            "words": advice.words,
            "code": advice.code,
            "second": advice.second,
        },
    }
    return tagged_json(answer, request)


def simulation_json(simulation: Simulation) -> dict[str, Any]:
    setting, lost, known = asdict(simulation.setting), simulation.lost, simulation.skips.known
    # The bounds of the shares hold at known scales, which depend on the skips unless the scale is fixed.
    bounded = known or simulation.setting.kind == "fixed"
    return {
        "policy": {"name": setting.pop("kind"), **setting},
        "skips": {**asdict(simulation.skips), "known": known},
        "scales": simulation.scales,
        **_share("zero_fraction", None if lost is None else lost.zero, bounded=bounded),
        **_share("subnormal_fraction", None if lost is None else lost.subnormal, bounded=bounded),
        "ended": simulation.ended,
    }


def _share(name: str, share: Share | None, *, bounded: bool) -> dict[str, float | None]:
    within = share if bounded else None
    return {
        name: None if share is None else share.expected,
        f"{name}_low": None if within is None else within.low,
        f"{name}_high": None if within is None else within.high,
    }


@router.get("/whatif")
@requires("read")
def show_whatif(
    run_id: UUID,
    request: Request,
    service: ServiceDependency,
    stream: StreamNumber = None,
    parameter: ParameterName = None,
    headroom: Annotated[float, Query(ge=0, le=32)] = 1.0,
) -> Response:
    """Estimate the shares of underflow, subnormal and overflow at each scale in each format, with bounds.

    It covers all fp16-representable parameters, or only ``parameter``. ``best`` is the largest power of two that leaves
    ``headroom`` bits.
    """
    found = measured(service.store, run_id, stream, parameter)
    if isinstance(found, str):
        raise NotFound(f"Run {run_id}: {found}.")
    gradient, gone = found.gradient, found.gone
    answer = {
        "run_id": str(run_id),
        "parameter": parameter,
        "scale": 2.0**gradient.level,
        "zero_fraction": gradient.zeros,
        "flushed": gone,
        "best": best(gradient, gone, headroom),
        "formats": {name: curve(gradient, gone, into) for name, into in FORMATS.items()},
    }
    return tagged_json(answer, request)
