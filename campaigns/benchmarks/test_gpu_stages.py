"""The stages of `make gpu` at a tiny size, on a CPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from benchmarks import given, gpu_kernels, host_cost, networks, report
from benchmarks.gpu import host, memory, suites, timed, training
from benchmarks.gpu.stage_results import PASSED, StageResults, read_results
from benchmarks.gpu.stages import STAGES
from benchmarks.gpu.suites import Suite


SUITE = """
import os
import pytest

def test_a(record_property):
    record_property("wrong", 0)

def test_b(): os._exit(3)

def test_c(record_property):
    record_property("wrong", {wrong})
    assert not {wrong}

@pytest.mark.skip
def test_d(): pass
"""


def said(file: Path) -> dict[str, object]:
    """The bars in a stage's results, with their values."""
    return {bar["bar"]: bar["value"] for bar in read_results(file)["bars"]}


def test_forms_of_parameters_on_a_cpu(tmp_path: Path) -> None:
    """The suite of layouts runs with only pytest and hypothesis, including FSDP2 on one rank and channels last."""
    file = tmp_path / "results"
    suites.run(Suite("holds", ("device/layouts_suite.py",)), StageResults(file), "cpu", 300.0)
    assert said(file)["holds"] == "2 passed, 0 failed, 1 skipped"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_timed_stages_speak_of_their_bars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU with few small tensors, each stage fills its tables and reports on its bars."""
    monkeypatch.setattr(given, "shapes", lambda: [(3, 4), (5,)])
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
        run(StageResults(file), "cpu", 1.0 if name == "training" else 60.0)
        bars = set(STAGES[name].bars)
        if name == "kernels":  # other tests cover Triton's interpreter
            assert set(said(file)) == set()
        else:
            assert set(said(file)) == bars
        for rows in read_results(file)["tables"].values():
            assert len({tuple(row) for row in rows}) == 1
            assert report.table(rows)
    kinds = [row["kind"] for row in read_results(tmp_path / "training")["tables"]["training"]]
    assert kinds == 2 * list(training.SETTING.kinds)
    measured = read_results(tmp_path / "kernels")["tables"]["kernels"]
    assert {row["data"] for row in measured} == set(gpu_kernels.DATA)


def test_a_suite_goes_on_where_a_test_ended_its_process(tmp_path: Path) -> None:
    """A test that ends its process fails; the tests before and after it still count, with their figures."""
    file = tmp_path / "test_it.py"
    file.write_text(SUITE.format(wrong=0))
    suite = Suite("holds", (str(file),), (), {"wrong records": "wrong"})
    suites.run(suite, StageResults(tmp_path / "results"), "cpu", 120.0)
    (failure,) = read_results(tmp_path / "results")["failures"]
    bars = {bar["bar"]: bar for bar in read_results(tmp_path / "results")["bars"]}
    assert bars["holds"]["value"] == "2 passed, 1 failed, 1 skipped"
    assert (failure["what"].rpartition("::")[2], failure["why"]) == ("test_b", suites.ENDED)
    wrong = bars["wrong records"]
    assert (wrong["state"], wrong["value"], wrong["note"]) == (PASSED, 0, "in 2 cells")
