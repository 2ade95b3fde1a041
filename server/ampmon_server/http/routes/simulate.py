"""Replays a run under another policy for the loss scale."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from ampmon_server.analysis.policy.advice import advise
from ampmon_server.analysis.policy.scalers import Kind, Setting
from ampmon_server.analysis.policy.simulate import Simulation
from ampmon_server.analysis.policy.underflow import Share
from ampmon_server.http.auth.access import requires
from ampmon_server.http.routes.answers import ServiceDependency, tagged_json
from ampmon_server.http.routes.callers import OF_RUN
from ampmon_server.http.routes.queries import StreamNumber, setting
from ampmon_server.queries.whatif_reader import recommended, simulator_of, tried


router = APIRouter(prefix="/api/v1/runs/{run_id}", dependencies=[OF_RUN])


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
    inconclusive. ``recommended`` is the setting that the run's findings recommend. Without one it is the best that was
    found, and its ``second`` says why that is only an alternative.
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
    skips, lost = simulation.skips, simulation.lost
    return {
        "policy": _setting(simulation.setting),
        "skips": {
            "low": skips.low,
            "expected": skips.expected,
            "high": skips.high,
            "known": skips.known,
        },
        "scales": [{"scale": each.scale, "updates": each.updates} for each in simulation.scales],
        **_share("zero_fraction", None if lost is None else lost.zero),
        **_share("subnormal_fraction", None if lost is None else lost.subnormal),
        "ended": simulation.ended,
    }


def _share(name: str, share: Share | None) -> dict[str, float | None]:
    return {
        name: None if share is None else share.expected,
        f"{name}_low": None if share is None else share.low,
        f"{name}_high": None if share is None else share.high,
    }


def _setting(setting: Setting) -> dict[str, Any]:
    return {
        "name": setting.kind,
        "init_scale": setting.init_scale,
        "growth_factor": setting.growth_factor,
        "backoff_factor": setting.backoff_factor,
        "growth_interval": setting.growth_interval,
    }
