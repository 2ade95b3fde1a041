"""Unmodified framework scripts under `ampmon run`: what is recorded, and the final weights.

The scripts are beside this file, written as in each framework's documentation, and make their own data.
shim/sitecustomize.py enables fp16 without CUDA, with and without ampmon.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from campaigns import frameworks
from campaigns.frameworks import HERE, PYTHON, SET, assert_same, skips, train, train_alike
from campaigns.frameworks.trainings import TRAININGS, assert_unchanged
from recording import recordings
from serving import free_port


@pytest.mark.parametrize("training", TRAININGS)
def test_a_script_is_recorded_and_ends_in_the_same_weights(training: str, tmp_path: Path) -> None:
    """All updates and skips are recorded with the model's names, and weights are bit for bit as without ampmon."""
    assert_unchanged(training, tmp_path)


PROJECT = (frameworks.ROOT / "pyproject.toml").read_text()


def pins() -> dict[str, str]:
    """The versions that pyproject.toml pins for this set."""
    extra = "frameworks-oldest" if SET == "oldest" else "frameworks"
    (listed,) = re.findall(rf"^{extra} = \[\n(.*?)^\]", PROJECT, re.MULTILINE | re.DOTALL)
    return dict(re.findall(r'"([\w-]+)==([\w.]+)"', listed))


LAUNCH = [
    "-m",
    "accelerate.commands.launch",
    "--cpu",
    "--mixed_precision=fp16",
    "--num_processes=1",
]


def test_accelerate_launch_starts_a_script_that_is_watched(tmp_path: Path) -> None:
    """A process started by `accelerate launch` is monitored, and ends in the weights of a run without ampmon."""
    script = str(HERE / "train_accelerate.py")
    (steps,), (recorded,) = train_alike(
        tmp_path, lambda folder: [*LAUNCH, script, str(folder)], shim="accelerate"
    )
    assert len(recorded.updates) == 24
    assert 0 < sum(skips(recorded)) == 24 - steps


def test_torchrun_s_ranks_are_one_run(tmp_path: Path) -> None:
    """Two ranks of plain DDP under torchrun, without a shim, are one run, each with all updates and skips."""

    def launched(folder: Path) -> list[str]:
        words = ["torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"]
        return ["-m", *words, str(HERE / "train_ddp.py"), str(folder)]

    steps, recorded = train_alike(tmp_path, launched, shim="")
    assert len({each.attempt.run_id for each in recorded}) == 1
    assert [0 < sum(skips(each)) == 12 - steps[0] for each in recorded] == [True, True]


def hooked(script: str, tmp_path: Path) -> Any:
    """Train on Ray with and without our hook, and return the weights, which must match. Records are in `hook`."""
    ends = []
    for hook in (["hook"], []):
        folder = tmp_path / ("hook" if hook else "none")
        words = str(HERE / script), str(folder), *hook
        ends.append(train(folder, *words, shim="", watched=False)[0])
    assert_same(*ends)
    return ends[0]


def test_a_ray_worker_is_watched_with_our_hook(tmp_path: Path) -> None:
    """Ray calls `ampmon.auto` in the worker, which records the task's training; the weights are as without it."""
    weights = hooked("train_ray.py", tmp_path)
    (recorded,) = recordings(tmp_path / "hook" / "ampmon")
    assert len(recorded.updates) == 24
    assert 0 < sum(skips(recorded)) == 24 - weights["steps"]
    assert recorded.header().parameters[0].name == "0.weight"
    assert recorded.attempt.name == {"newest": "train", "oldest": "ray"}[SET]
    assert recorded.events("error") == []
    assert len(recorded.events("finish")) == 1
    assert not (tmp_path / "none" / "ampmon").exists()


def test_ray_workers_with_shards_are_one_run(tmp_path: Path) -> None:
    """Actors that get their ranks as verl's do, and train with FSDP, are one run, each with all updates and skips."""
    weights = hooked("train_ray_workers.py", tmp_path)
    steps = int(weights["0.4"])
    recorded = recordings(tmp_path / "hook" / "ampmon")
    assert sorted(each.attempt.rank for each in recorded) == [0, 1]
    assert len({each.attempt.run_id for each in recorded}) == 1
    for each in recorded:
        assert len(each.updates) == 24
        assert 0 < sum(skips(each)) == 24 - steps
        assert (each.header().layout, each.header().growth_interval) == ("sharded", 400)
        assert each.header().scaler.endswith("ShardedGradScaler")
        assert each.events("error") == []


def test_the_documentation_lists_the_scripts_and_the_versions() -> None:
    """docs/measurements.md lists each script with its updates, docs/frameworks.md the pinned versions."""
    docs = frameworks.ROOT / "docs"
    rows = re.findall(
        r"^\| ([a-z ]+) \| (\d+) \|$", (docs / "measurements.md").read_text(), re.MULTILINE
    )
    assert rows == [(name, str(updates)) for name, (_, updates, _) in TRAININGS.items()]
    page = (docs / "frameworks.md").read_text()
    trackers = {"datasets", "pyarrow", "tensorboard", "torchvision", "wandb"}
    assert [
        name for name, version in pins().items() if version not in page and name not in trackers
    ] == []


def test_the_environment_has_the_versions_that_are_pinned() -> None:
    """The environment has the versions that pyproject.toml pins, with the other tests' torch or the oldest."""
    pinned = pins()
    script = f"from importlib.metadata import version; print(*map(version, {[*pinned, 'torch']}))"
    *installed, of_torch = subprocess.check_output([PYTHON, "-c", script], text=True).split()
    assert dict(zip(pinned, installed, strict=True)) == pinned
    (oldest,) = re.findall(r'^torch = \["torch>=(.*)"\]', PROJECT, re.MULTILINE)
    expected = oldest if SET == "oldest" else torch.__version__.partition("+")[0]
    assert of_torch.startswith(expected)
    assert "FRAMEWORKS_SHIM" not in os.environ
