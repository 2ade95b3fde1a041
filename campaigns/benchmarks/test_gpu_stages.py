"""The stages of `make gpu` at a tiny size, on a CPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from benchmarks import gpu_kernels, host_cost, networks, report, sample_cost
from benchmarks.gpu import host, memory, suites, timed, training
from benchmarks.gpu.stages import STAGES
from benchmarks.gpu.suites import Suite
from benchmarks.gpu.told import Told, heard


def said(file: Path) -> dict[str, object]:
    """The bars that a stage has spoken of, with their values."""
    return {bar["bar"]: bar["value"] for bar in heard(file)["bars"]}


def test_forms_of_parameters_on_a_cpu(tmp_path: Path) -> None:
    """The suites run with no more than pytest and hypothesis, FSDP2 over one rank and channels last among them."""
    file = tmp_path / "told"
    suites.run(Suite("holds", ("device/layouts_suite.py",)), Told(file), "cpu", 300.0)
    assert said(file)["holds"] == "2 passed, 0 failed, 1 skipped"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_timed_stages_speak_of_their_bars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, with few small tensors, each stage measures, fills its tables and speaks of its bars."""
    monkeypatch.setattr(sample_cost, "shapes", lambda: [(3, 4), (5,)])
    monkeypatch.setattr(host_cost, "TENSORS", (6, 148))
    monkeypatch.setattr(host_cost, "WARM_UP", 1)
    tiny = replace(
        training.SETTING,
        model=partial(networks.gpt2, networks.TINY, 50),
        batch=partial(networks.tokens, networks.TINY, 50),
        block=1,
    )
    stages = {
        "kernels": timed.run,
        "host": host.run,
        "training": partial(training.run, setting=tiny),
        "memory": memory.run,
    }
    for name, run in stages.items():
        file = tmp_path / name
        run(Told(file), "cpu", 1.0 if name == "training" else 60.0)
        bars = set(STAGES[name].bars)
        if name == "kernels":  # Triton's interpreter is for tests of its own
            assert set(said(file)) == set()
        else:
            assert set(said(file)) == bars
        for rows in heard(file)["tables"].values():
            assert len({tuple(row) for row in rows}) == 1
            assert report.table(rows)
    kinds = [row["kind"] for row in heard(tmp_path / "training")["tables"]["training"]]
    assert kinds == 2 * list(training.SETTING.kinds)
    measured = heard(tmp_path / "kernels")["tables"]["kernels"]
    assert {row["data"] for row in measured} == set(gpu_kernels.DATA)
