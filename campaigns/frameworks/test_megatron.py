"""Loss scale and gradients of Megatron-core's real optimizer, as `ampmon.integrations.megatron` records them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampmon.numerics.histogram import Statistics
from campaigns import frameworks
from recording import recording


def test_what_is_recorded_is_what_megatron_did(data_directory: Path) -> None:
    """Scales, skips, culprits and scaled gradients are recorded by name; weights are bit for bit as without ampmon."""
    counted = frameworks.counted("train_megatron.py", "watched")
    stock = frameworks.counted("train_megatron.py", "alone")
    assert {**stock, "metrics": None} == {**counted, "metrics": None}
    recorded = recording(data_directory)
    updates = recorded.of("megatron")
    assert [update.scale for update in updates] == counted["scales"]
    assert [update.optimizers[0].skipped for update in updates] == counted["skipped"]
    skips = [update for update in updates if update.optimizers[0].skipped]
    # The first overflow after a growth is a skip without back-off.
    assert (skips[0].event, skips[1].event) == ("steady", "backoff")
    assert all(update.optimizers[0].culprits for update in skips)
    header = recorded.header("megatron")
    assert header.scaler == "megatron.DynamicGradScaler(hysteresis=2, min_scale=1)"
    names = [parameter.name for parameter in header.parameters]
    assert names == ["body.weight", "body.bias", "head.weight", "head.bias"]
    sampled = {update.ordinal: update.gradients for update in updates if update.gradients}
    assert 0 in sampled
    for ordinal, gradients in sampled.items():
        squares = Statistics.from_wire(gradients).sum_squares[0]
        assert squares == pytest.approx(counted["norms"][ordinal], rel=1e-6, nan_ok=True)
    assert counted["metrics"]["amp/skipped_total"] == len(skips)
    assert "amp/subnormal_share" in counted["metrics"]
    assert recorded.events("error") == []
