"""DeepSpeed's real loss scale in each ZeRO stage, as `ampmon.integrations.deepspeed` records it."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaigns import frameworks
from recording import recording
from serving import free_port


STEPS = 40


@pytest.mark.parametrize("stage", range(4))
def test_what_is_recorded_is_what_deepspeed_counted(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch, stage: int
) -> None:
    """Each step is recorded with its scale, and as skipped exactly where `engine.skipped_steps` rose."""
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    counted = frameworks.counted("train_deepspeed.py", str(stage), str(STEPS))
    recorded = recording(data_directory)
    updates = recorded.of("deepspeed")
    assert [update.scale for update in updates] == counted["scales"]
    assert [update.optimizers[0].skipped for update in updates] == counted["skipped"]
    assert sum(counted["skipped"]) == counted["skipped_steps"] >= 12
    assert counted["metrics"]["amp/skipped_total"] == counted["skipped_steps"]
    header = recorded.header("deepspeed")
    assert (header.init_scale, header.growth_interval) == (2.0**18, 5)
    held = [each for each in updates if each.optimizers[0].skipped and each.event == "steady"]
    assert bool(held) is ("hysteresis=2" in header.scaler) is (stage > 0)
    assert recorded.events("error") == []
