"""Megatron-core's loss scale, as `ampmon.integrations.megatron` records it: that of the real `DynamicGradScaler`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from campaigns import frameworks
from recording import recording


FIND = "import importlib.util as u; print(*u.find_spec('megatron').submodule_search_locations)"


def test_what_is_recorded_is_what_megatron_did(data_directory: Path) -> None:
    """Each update is there, with the scale in force; the first overflow after a growth is a skip without back-off."""
    found = subprocess.check_output([frameworks.PYTHON, "-c", FIND], text=True).split()
    printed = frameworks.run("train_megatron.py", str(Path(found[0]).parent))
    counted = json.loads(printed.splitlines()[-1].removeprefix("COUNTED "))
    recorded = recording(data_directory)
    updates = recorded.of("megatron")
    assert [update.scale for update in updates] == counted["scales"]
    assert [update.optimizers[0].skipped for update in updates] == counted["skipped"]
    events = [each.event for each in updates if each.optimizers[0].skipped]
    assert (events[0], set(events[1:20])) == ("steady", {"backoff"})
    header = recorded.header("megatron")
    assert header.scaler == "megatron.DynamicGradScaler(hysteresis=2, min_scale=1)"
    assert recorded.events("error") == []
