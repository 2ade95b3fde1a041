"""The simulator over HTTP: a run under another policy."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from starlette.testclient import TestClient

from ampmon import wire
from ampmon.numerics.formats import FP32
from ampmon_server.analysis.policy.scalers import Torch
from batches import Trainer, statistics


def _climbing(updates: int = 1200) -> tuple[Trainer, list[wire.Update]]:
    """A run with growth_interval 50 that overflows from 2^13 on, sampled every 100 updates."""
    trainer, machine, records = Trainer(), Torch(growth_interval=50), []
    for index in range(updates):
        scale, skipped = machine.scale, machine.scale >= 2.0**13
        if skipped:
            machine.overflow()
        else:
            machine.clean(1)
        gradients = statistics(seed=index).to_wire() if index % 100 == 50 else None
        records.append(
            trainer.update(
                skipped=skipped, scale=scale, scale_after=machine.scale, gradients=gradients
            )
        )
    return trainer, records


def test_a_run_is_replayed_under_another_policy(client: TestClient, send) -> None:
    """A replay has skips, scales and fp16 loss, recorded and simulated, and a recommendation that follows the run."""
    trainer, records = _climbing()
    path = f"/api/v1/runs/{trainer.run_id}/simulate"
    send(trainer.batch(records[10:20]))
    assert client.get(path).json()["recommended"]["code"] == ""
    send(trainer.batch(records))
    answer = client.get(path, params={"growth_interval": 400}).json()
    was, would_be = answer["recorded"], answer["simulated"]
    assert was["skips"]["expected"] == sum(update.optimizers[0].skipped for update in records)
    assert would_be["policy"]["growth_interval"] == 400
    assert would_be["policy"]["init_scale"] == 65536.0
    assert would_be["skips"]["high"] < was["skips"]["low"]
    assert sum(each["updates"] for each in would_be["scales"]) == pytest.approx(answer["updates"])
    low, subnormal, high = (would_be[f"subnormal_fraction{end}"] for end in ("_low", "", "_high"))
    assert 0.0 < low < subnormal < high < 1.0
    assert answer["recommended"]["code"].startswith("scaler = torch.amp.GradScaler(")
    fixed = client.get(path, params={"policy": "fixed", "init_scale": 1024}).json()["simulated"]
    assert fixed["scales"] == [{"scale": 1024.0, "updates": 1200.0}]


@pytest.mark.parametrize(
    ("setting", "bounded"),
    [({"backoff_factor": 0.9}, False), ({"policy": "fixed", "init_scale": 2**17}, True)],
)
def test_fractions_have_no_bounds_at_unknown_scales(
    client: TestClient, send, setting, bounded
) -> None:
    """If the skips are inconclusive, the bounds of the fractions are null unless the scale is fixed."""
    trainer, records = _climbing()
    send(trainer.batch(records))
    answer = client.get(f"/api/v1/runs/{trainer.run_id}/simulate", params=setting).json()
    simulated = answer["simulated"]
    assert not simulated["skips"]["known"]
    assert 0.0 <= simulated["subnormal_fraction"] <= 1.0
    assert (simulated["subnormal_fraction_low"] is not None) == bounded
    assert (simulated["zero_fraction_high"] is not None) == bounded


def test_what_cannot_be_simulated_is_said(client: TestClient, send) -> None:
    """An invalid setting gets a 422 that names it; an unknown stream or a run without updates gets a 404."""
    trainer, records = _climbing(20)
    send(trainer.batch(records))
    path = f"/api/v1/runs/{trainer.run_id}/simulate"
    for field, given in (
        ("growth_interval", {"growth_interval": 0}),
        ("growth_factor", {"growth_factor": 1}),
        ("backoff_factor", {"backoff_factor": 1.5}),
        ("init_scale", {"init_scale": "nan"}),
        ("growth_factor", {"policy": "megatron", "growth_factor": 4}),
        ("policy", {"policy": "apex"}),
    ):
        answer = client.get(path, params=given)
        assert answer.status_code == 422
        assert answer.json()["field"] == field
    assert client.get(path, params={"stream": 99}).status_code == 404
    empty = Trainer()
    send(empty.batch([empty.event("init")]))
    assert client.get(f"/api/v1/runs/{empty.run_id}/simulate").status_code == 404


def test_a_resume_with_its_state_is_replayed_as_it_was(client: TestClient, send) -> None:
    """Under its own policy, a replay begins with the first scale and growth tracker, not those of the newest start."""
    machine = Torch(init_scale=1300.0, growth_factor=1.3, growth_interval=10)
    machine.resume(7)
    first, found = Trainer(), []

    def trained(trainer: Trainer, updates: int, begins: float) -> None:
        header = msgspec.structs.replace(
            trainer.stream, init_scale=begins, growth_factor=1.3, growth_interval=10
        )
        records = []
        for _ in range(updates):
            scale, skipped = machine.scale, machine.scale >= 4000
            if skipped:
                machine.overflow()
            else:
                machine.clean(1)
            found.append((scale, skipped))
            tracker = 10 - machine.until_growth
            records.append(
                trainer.update(
                    skipped=skipped, scale=scale, scale_after=machine.scale, growth_tracker=tracker
                )
            )
        send(trainer.batch(records, headers=(trainer.attempt, header)))

    trained(first, 60, 1300.0)
    trained(Trainer(run_id=first.run_id, resume_step=60), 60, machine.scale)
    answer = client.get(f"/api/v1/runs/{first.run_id}/simulate").json()
    scales = [scale for scale, _ in found]
    spent = [
        {"scale": scale, "updates": float(scales.count(scale))} for scale in sorted(set(scales))
    ]
    assert answer["recorded"]["scales"] == answer["simulated"]["scales"] == spent
    assert answer["simulated"]["skips"]["expected"] == sum(skipped for _, skipped in found) > 2


def test_a_skip_at_the_start_leaves_no_clean_updates(client: TestClient, send) -> None:
    """A replay in which the first update is not skipped grows its scale after a whole interval."""
    trainer = Trainer()
    records = [
        trainer.update(skipped=not index, scale=1024.0 / (1 + (index > 0)), growth_tracker=index)
        for index in range(1990)
    ]
    send(trainer.batch(records))
    path = f"/api/v1/runs/{trainer.run_id}/simulate"
    answer = client.get(path, params={"init_scale": 256}).json()
    assert answer["simulated"]["scales"] == [{"scale": 256.0, "updates": 1990.0}]


@pytest.mark.parametrize(("loss", "expected"), [(None, 10), ("not_finite", 10), ("finite", 0)])
def test_nan_is_distinguished_from_overflow(
    client: TestClient, send, loss: str | None, expected: int
) -> None:
    """A skip for NaN repeats at scale 1, unless its loss was finite, which makes it an overflow."""
    trainer = Trainer()
    culprits = (wire.Culprit(0, 0, 3),)
    step = wire.OptimizerStep(
        optimizer="SGD", path="plain", skipped=True, culprits=culprits, culprit_parameters=1
    )
    records = [
        trainer.update(skipped=True, optimizers=(step,), loss=loss)
        if index % 10 == 9
        else trainer.update()
        for index in range(100)
    ]
    send(trainer.batch(records))
    path = f"/api/v1/runs/{trainer.run_id}/simulate"
    skips = client.get(path, params={"policy": "fixed", "init_scale": 1}).json()["simulated"][
        "skips"
    ]
    assert skips["low"] == expected
    assert loss == "finite" or (skips["expected"], skips["known"]) == (expected, True)


def test_a_resumed_run_on_two_ranks_is_one(client: TestClient, send) -> None:
    """Each step counts once: as its newest attempt did it, and as skipped where any rank skipped it."""
    first = Trainer(world_size=2)
    send(first.batch(first.updates(40, skipped=[5, 30])))
    other = Trainer(run_id=first.run_id, rank=1, world_size=2)
    send(other.batch(other.updates(30, skipped=[5, 12])))
    again = Trainer(run_id=first.run_id, world_size=2, resume_step=20)
    send(again.batch(again.updates(40, skipped=[1])))
    path = f"/api/v1/runs/{first.run_id}/simulate"
    answer = client.get(path, params={"policy": "fixed", "init_scale": 1024}).json()
    assert (answer["updates"], answer["first"], answer["last"]) == (60, 0, 59)
    assert answer["recorded"]["skips"]["expected"] == 3  # 5, 12 and, of the second attempt, 21


@pytest.mark.parametrize("scale", [3.5e38, pytest.param(1.7e308, marks=pytest.mark.rare)])
def test_scales_beyond_fp32_are_no_scales(client: TestClient, send, scale: float) -> None:
    """A scale beyond fp32 is no error: a setting counts as fp32's maximum, an update's as the scale before it."""
    trainer = Trainer()
    header = msgspec.structs.replace(
        trainer.stream, init_scale=scale, growth_factor=scale, backoff_factor=scale
    )
    records = [
        trainer.update(
            scale=65536.0 if index < 4 else scale,
            skipped=index == 3,
            gradients=statistics(seed=index).to_wire() if index % 2 else None,
        )
        for index in range(8)
    ]
    send(trainer.batch(records, headers=(trainer.attempt, header)))
    run = f"/api/v1/runs/{trainer.run_id}"
    answer = client.get(f"{run}/simulate").json()
    assert answer["recorded"]["scales"] == [{"scale": 65536.0, "updates": 8}]
    assert answer["simulated"]["scales"] == [
        {"scale": 65536.0, "updates": 4.0},
        {"scale": pytest.approx(FP32.max), "updates": 4.0},
    ]
    for path in ("figures/simulated", "whatif", "figures/whatif", "figures/scale", "diagnosis"):
        assert client.get(f"{run}/{path}").status_code == 200, path


def test_no_scale_beyond_fp32_is_recommended(client: TestClient, send) -> None:
    """For a gradient too small for any scale, the largest power of two in fp32 is recommended."""
    trainer = Trainer()
    tiny = replace(statistics(), amax=np.full(2, 5e-324))
    send(trainer.batch([trainer.update(gradients=tiny.to_wire())]))
    answer = client.get(f"/api/v1/runs/{trainer.run_id}/whatif").json()
    assert answer["best"]["scale"] == 2.0**127
