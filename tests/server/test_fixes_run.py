"""Fixes that create the scaler, run in the scripts they were written for, on a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ampmon import wire
from ampmon.lints.reporter import LINTS
from ampmon_server.analysis.diagnosis.rules import parts, skip_rate, subnormal
from ampmon_server.analysis.diagnosis.rules.scale import (
    calibration,
    collapse_forecast,
    dead_scale,
    sawtooth,
    scale_floor,
    slow_growth,
    stuck_scale,
)
from ampmon_server.analysis.policy.languages import in_settings_of
from ampmon_server.analysis.policy.scalers import Setting
from ampmon_server.model.scale_policy import ScalePolicy
from ampmon_server.store import Store
from recording import recording
from scripts import run


SCRIPT = """
import json, sys, torch, ampmon
{first}
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
{line}
for fix in json.loads(sys.argv[1]) or [""]:
    exec(fix)
    scaler.scale(net(torch.ones(2, 4)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    monitor = getattr(scaler, "monitor", None)
    names = "device", "init_scale", "growth_factor", "backoff_factor", "growth_interval"
    state = {{name: getattr(scaler, f"_{{name}}", None) for name in names}}
    state["enabled"] = scaler.is_enabled()
    state["every"] = monitor and monitor.config.every
    state["activations"] = monitor and monitor.config.activations
    print(json.dumps(state))
ampmon.finish()
"""
GIVEN = {"device": "cpu", "init_scale": 1024.0, "growth_interval": 50}
STOCK = '"cpu", init_scale=1024.0, growth_interval=50'
SCRIPTS = {
    "ampmon's": (
        "",
        f"scaler = ampmon.GradScaler({STOCK}, model=net, monitor=ampmon.Config(every=3))",
        3,
    ),
    "torch's": ("ampmon.auto()", f"model = net; scaler = torch.amp.GradScaler({STOCK})", "auto"),
    "watched": (
        "",
        f"model = net; scaler = ampmon.watch(torch.amp.GradScaler({STOCK}), monitor=ampmon.Config(every=3))",
        3,
    ),
}
SCALE, INTERVAL = {"init_scale": 256.0}, {"growth_interval": 200}
BOTH, ACTIVATIONS = SCALE | INTERVAL, {"activations": 1}
FIXES: list[tuple[str, dict[str, Any]]] = [
    (sawtooth.FIX, {"growth_interval": 2000}),
    (calibration.FIX.format(init_scale="256"), SCALE),
    (subnormal.HIGHER.format(init_scale="256", share="1 %"), SCALE),
    (scale_floor.FIX.format(init_scale="256"), SCALE),
    (dead_scale.FIX.format(step=3, init_scale="256"), SCALE),
    (skip_rate.LESS_OFTEN.format(growth_interval=200), INTERVAL),
    (slow_growth.FIX.format(init_scale="256", growth_interval=200), BOTH),
    (Setting("torch", 256.0, 2.0, 0.5, 200).code(ScalePolicy(init_scale=1024.0)), BOTH),
    (stuck_scale.FIX, {}),
    (parts.LOOK, ACTIVATIONS),
    (collapse_forecast.FIX, ACTIVATIONS),
    (LINTS["scaler_under_bf16"].fix, {"enabled": False}),
]


@pytest.mark.parametrize(
    "maker",
    [pytest.param(each, marks=[] if each == "watched" else pytest.mark.rare) for each in SCRIPTS],
)
def test_a_fix_in_its_script_on_a_cpu_makes_the_scaler_that_it_recommends(
    maker: str, data_directory: Path, tmp_path: Path, store: Store
) -> None:
    """A fix creates a watched scaler with the recommended setting and otherwise the script's own."""
    first, line, every = SCRIPTS[maker]
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(first=first, line=line))
    run(str(script), "[]")
    policy = _policy(store, data_directory)
    fixes = [
        next(line for line in in_settings_of(policy, code).splitlines() if "scaler = " in line)
        for code, _ in FIXES
    ]
    states = [json.loads(each) for each in run(str(script), json.dumps(fixes)).stdout.splitlines()]
    for fix, (_, changes), made in zip(fixes, FIXES, states, strict=True):
        wanted = {**GIVEN, "growth_factor": 2.0, "backoff_factor": 0.5, "enabled": True, **changes}
        watched = {"every": every, "activations": changes.get("activations")}
        if not wanted["enabled"]:
            wanted, watched = {"enabled": False}, {}
        assert {name: made[name] for name in wanted | watched} == wanted | watched, fix


def _policy(store: Store, directory: Path) -> ScalePolicy:
    """The scaler's settings, as ingested from the only recording."""
    recorded = recording(directory)
    streams = [each for each in recorded.messages if isinstance(each, wire.StreamHeader)]
    batch = wire.Batch(
        schema_version=wire.SCHEMA_VERSION,
        run_id=recorded.attempt.run_id,
        attempt_id=recorded.attempt.attempt_id,
        headers=(recorded.attempt, streams[-1]),
        records=tuple(recorded.updates),
    )
    store.ingest(batch)
    return store.policy(recorded.attempt.run_id)
