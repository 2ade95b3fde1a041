"""`make gpu` without a GPU: the reports of its stages, and combined results.

`campaigns/benchmarks/test_gpu_stages.py` runs the stages at a tiny size, and a suite that ends its process.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import scripts
from benchmarks import gpu_kernels, kernel_code, report
from benchmarks.gpu import __main__ as command
from benchmarks.gpu import code, suites, timed
from benchmarks.gpu.result import Result, claim
from benchmarks.gpu.stage_results import FAILED, NOT_RUN, PASSED, StageResults, read_results
from benchmarks.gpu.stages import FACTS, STAGES, TOTAL_S
from benchmarks.gpu.suites import Suite
from waiting import wait_for


ROOT = Path(__file__).parents[2]
HERE = {"gpu": "NVIDIA Ten", "driver": "1", "torch": "2.99", "triton": "3.99"}


def said(file: Path) -> dict[str, dict[str, Any]]:
    """The bars that a stage reported, by name."""
    return {bar["bar"]: bar for bar in read_results(file)["bars"]}


@pytest.fixture
def results(tmp_path: Path) -> StageResults:
    """The results of a stage, written to the file `results` in the test's folder."""
    return StageResults(tmp_path / "results")


def test_what_a_tally_says() -> None:
    """Figures are kept, a test with a later error failed, and tests without a result were not run."""
    lines = ['{"collected": 3}', '{"test": "a", "state": "started"}']
    lines += ['{"test": "a", "state": "passed", "figures": {"wrong": 2}}']
    lines += ['{"test": "a", "state": "failed", "why": "E  at its end", "figures": {}}']
    lines += ['{"test": "b", "state": "started"}']
    seen = suites.seen(lines)
    assert (seen.counts(), seen.ended) == ("0 passed, 1 failed, 0 skipped, 2 not run", 1)
    assert seen.figures == [{"test": "a", "wrong": 2}]
    assert suites.seen([*lines, '{"collected": 3}']).why["b"] == suites.ENDED


def test_a_suite_that_cannot_start_has_failed(tmp_path: Path, results: StageResults) -> None:
    """A suite whose file is missing fails with pytest's own message."""
    suites.run(Suite("holds", (str(tmp_path / "nowhere.py"),)), results, "cpu", 60.0)
    assert said(tmp_path / "results")["holds"]["state"] == FAILED
    assert "nowhere.py" in read_results(tmp_path / "results")["failures"][0]["why"]


def test_a_bar_of_the_kernels_is_held_to_the_worst_data(
    tmp_path: Path, results: StageResults
) -> None:
    """The worst data decide whether a bar passed, and a ratio within the noise of its bar fails."""
    row = {"what": gpu_kernels.STATISTICS, "dtype": "float32", "low": 1, "high": 2, "bar": 1.1}
    good = {**row, "data": "random", "ratio": 1.01, "holds": "yes"}
    unsure = {**row, "data": "one binade", "ratio": 1.09, "holds": "not told apart"}
    states = []
    for rows in ([good], [good, unsure]):
        timed._report(results, rows, next(iter(timed.NAMES)))
        states.append(said(tmp_path / "results")["statistics beside one read, fp32"]["state"])
    assert states == [PASSED, FAILED]


def test_spills_are_counted_of_loops_only(tmp_path: Path, results: StageResults) -> None:
    """Spills count only in ordinary loops and once all loops are known. A variant that does not compile fails a bar."""
    loops = [code.made("no_gpu", 0)]
    assert loops[0]["seconds"] is None
    assert loops[0]["note"]
    spills = "spills in ordinary loops, bytes"
    ordinary = {"variant": "a", "seconds": 1.0, "registers": 90, "spilled": 0, "ordinary": True}
    other = {**ordinary, "ordinary": False, "spilled": 24}
    code.report_variants(results, [ordinary, other], 3)
    bars = said(tmp_path / "results")
    assert {bar["state"] for bar in bars.values()} == {NOT_RUN}
    code.report_variants(
        results, [ordinary] * len(kernel_code.LOOPS) + [other], len(kernel_code.LOOPS) + 1
    )
    assert {bar["state"] for bar in said(tmp_path / "results").values()} == {PASSED}
    code.report_variants(results, [{**ordinary, "spilled": 8}, *loops], 2)
    bars = said(tmp_path / "results")
    assert (bars[spills]["state"], bars[spills]["value"]) == (FAILED, 8)
    assert bars["all variants of the kernels compile"]["state"] == FAILED


def test_a_stage_that_fails_costs_itself_only(tmp_path: Path) -> None:
    """A stage that raises ends with its exit code and last message."""
    failing = command.stage_command("nonsense", tmp_path / "results", "cpu", 60.0)
    failed = command.run_stage(failing, tmp_path / "log", 60.0, lambda seconds: None)
    assert failed.state == "ended with exit code 1"
    assert "KeyError: 'nonsense'" in failed.words


HANGING = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print(child.pid, flush=True)
time.sleep(1000)
"""


def test_a_stage_that_hangs_is_ended_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage over its time limit is cut off. If the command is interrupted, the stage's child processes end."""
    monkeypatch.setattr(command, "LOOK_S", 0.02)
    hanging, log = [sys.executable, "-c", HANGING], tmp_path / "log"
    outcome = command.run_stage(hanging, log, 0.0, lambda seconds: None)
    assert outcome.state == "cut off"

    def interrupted(seconds: float) -> None:
        if log.read_text().endswith("\n"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        command.run_stage(hanging, log, 60.0, interrupted)
    child = Path("/proc", log.read_text().strip(), "stat")
    wait_for(lambda: not child.exists() or child.read_text().rpartition(")")[2].split()[0] == "Z")


def of_stage(stage: str, holds: bool) -> dict[str, Any]:
    """The report of a stage whose bars all hold, or all fail."""
    state = PASSED if holds else FAILED
    bars = [
        {"bar": bar, "limit": 1, "value": 1, "state": state, "note": ""}
        for bar in STAGES[stage].bars
    ]
    failures = (
        []
        if holds
        else [{"what": "test_it", "why": f"def test_it():\n{ROOT}/it.py\nE   assert | 0"}]
    )
    return {"facts": {}, "bars": bars, "tables": {}, "failures": failures}


def begun(commit: str) -> Result:
    """A result that knows its machine and nothing else."""
    result = Result(commit)
    facts = {"facts": HERE, "bars": [], "tables": {}, "failures": []}
    result.hear(FACTS, facts, "done", 1.0)
    return result


def test_a_later_run_goes_on_with_the_result_of_the_same_code(tmp_path: Path) -> None:
    """A result of the same commit keeps the stages that are not run again; one of another commit is ignored."""
    first = begun("abc")
    first.hear("waits", of_stage("waits", True), "done", 3.0)
    first.hear("streams", of_stage("streams", False), "cut off", 9.0)
    path = first.write(tmp_path)
    assert path.name == "nvidia-ten-gpu.md"
    text = path.read_text()
    assert "| waits |" in text
    assert "E   assert / 0" in text
    assert all(bar in text for stage in STAGES.values() for bar in stage.bars)

    second, other = begun("abc"), begun("def")
    for result in (second, other):
        result.continue_from(tmp_path / result.name(), ["streams"])
    assert (second.count(PASSED), other.count(PASSED)) == (len(STAGES["waits"].bars), 0)
    assert second.count(FAILED) == 0
    assert second.bars(["streams"])[0]["note"] == "the stage 'streams': not run"
    assert claim(second.figures()).startswith("NVIDIA Ten, torch 2.99, commit abc: 3 of ")


def test_stages_fit_into_ten_minutes() -> None:
    """The limits of all stages add up to at most ten minutes, and their bars have distinct names."""
    stages = [stage for name, stage in STAGES.items() if name != FACTS]
    at_once = max(stage.limit_s for stage in stages if not stage.alone)
    assert at_once + sum(stage.limit_s for stage in stages if stage.alone) <= TOTAL_S == 600
    names = [bar for stage in STAGES.values() for bar in stage.bars]
    assert len(set(names)) == len(names)
    for stage in STAGES.values():
        if isinstance(stage.work, Suite):
            files = [*stage.work.files, *(each.partition("::")[0] for each in stage.work.on_cuda)]
            assert [each for each in files if not (ROOT / "tests" / each).exists()] == []


class OnAGpu:
    """Runs stages as on a GPU, in no time. One stage can fail, and one can be cut off after its first bar."""

    def __init__(self, failing: str = "", slow: str = "") -> None:
        self.ran: list[str] = []
        self._failing, self._slow = failing, slow

    def __call__(
        self, words: list[str], log: Path, limit_s: float, changed: Callable[[float], None]
    ) -> command.Outcome:
        name, file, place, _ = words[-4:]
        self.ran.append(name)
        assert place == "cuda"
        if name == FACTS:
            said = {"facts": HERE, "bars": [], "tables": {}, "failures": []}
        else:
            said = of_stage(name, name != self._failing)
        if name == self._slow:
            said["bars"] = said["bars"][:1]
        Path(file).write_text(json.dumps(said))
        changed(1.0)
        return command.Outcome("cut off" if name == self._slow else "done", 2.0, "")


def call(folder: Path, stages: OnAGpu, *words: str) -> int:
    """Call `make gpu` on that GPU and return the exit code."""
    arguments = command.parsed([*words, "--results", str(folder), "--commit", "abc"])
    run = command.Run(arguments, folder, stages)
    assert run.start()
    run.stages()
    return run.end()


def test_calls_on_a_gpu_complete_a_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failed bar sets the exit code, and later calls run single or missing stages and keep the other results."""
    first = OnAGpu(failing="streams", slow="waits")
    assert call(tmp_path, first) == 1
    alone = [name for name, stage in STAGES.items() if stage.alone]
    assert first.ran[0] == FACTS
    assert first.ran[-len(alone) + 1 :] == alone[1:]
    assert sorted(first.ran) == sorted(STAGES)
    assert str(ROOT) not in json.dumps(report.read(tmp_path / "nvidia-ten-gpu"))
    printed = capsys.readouterr().out
    assert "waits, at most 120 s: " in printed
    assert "waits: bars: 1 passed, 0 failed, 2 not run; 2 s" in printed
    again = OnAGpu()
    assert call(tmp_path, again, "streams") == 0
    assert again.ran == [FACTS, "streams"]
    resumed = OnAGpu()
    assert call(tmp_path, resumed, "--resume") == 0
    assert resumed.ran == [FACTS, "waits"]
    bars = [bar for stage in STAGES.values() for bar in stage.bars]
    *_, claimed, file = capsys.readouterr().out.splitlines()
    assert claimed.endswith(f"commit abc: {len(bars)} of {len(bars)} bars passed")
    assert file == str(tmp_path / "nvidia-ten-gpu.md")
    late = OnAGpu()
    assert call(tmp_path, late, "--seconds", "0") == 0
    assert late.ran == [FACTS]


PLATFORMS = (ROOT / "docs" / "platforms.md").read_text()
NONE_YET = "no result of `make gpu` yet"


def unproven(page: str, claims: list[str]) -> list[str]:
    """The claims on a page that no result supports, and the claims that it lacks."""
    claimed = re.findall(r"^- (.* bars passed.*)$", page, re.MULTILINE)
    said = {*claimed, *([NONE_YET] if NONE_YET in page else [])}
    return sorted(said ^ set(claims or [NONE_YET]))


def test_cuda_is_claimed_for_what_a_result_shows() -> None:
    """The claims for CUDA in docs/platforms.md are exactly those of the committed results, or that there are none."""
    files = sorted((ROOT / "benchmarks" / "results").glob("*-gpu.json.gz"))
    stored = [file.with_name(file.name.removesuffix(".json.gz")) for file in files]
    assert unproven(PLATFORMS, [claim(report.read(path)) for path in stored]) == []
    shown = "NVIDIA Ten, torch 2.99, commit abc: 3 of 23 bars passed"
    assert unproven(f"- {shown}", []) == sorted([shown, NONE_YET])
    assert unproven(f"- {shown}; failed: none", [shown]) == [shown, f"{shown}; failed: none"]
    assert unproven(NONE_YET, [shown]) == sorted([shown, NONE_YET])
    assert unproven(f"- {shown}", [shown]) == []


def test_the_page_of_platforms_has_each_stage() -> None:
    """The table in docs/platforms.md has every stage with its time limit."""
    rows = re.findall(r"^\| `(\w+)` \| (\d+) s \|", PLATFORMS, re.MULTILINE)
    stages = [(name, stage.limit_s) for name, stage in STAGES.items() if name != FACTS]
    assert [(name, int(limit)) for name, limit in rows] == stages


def test_what_is_missing_is_reported_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """`missing` names the packages that the stages need and that are not installed."""
    assert command.missing() == []
    monkeypatch.setattr(command, "NEEDED", {"torch": "torch", "no_such_module": "its-package"})
    assert command.missing() == ["its-package"]


def test_make_gpu_says_that_there_is_no_gpu(tmp_path: Path) -> None:
    """Without a GPU, stages that need one are reported as not run, no result is written, and the exit code is 0."""
    words = ["-m", "benchmarks.gpu", "training", "memory", "--results", str(tmp_path / "results")]
    environment = {"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""}
    done = scripts.run(*words, cwd=ROOT, env=environment)
    assert done.stdout.startswith("There is no GPU here")
    assert "training: not run, for it needs a GPU." in done.stdout
    assert done.stdout.count("| not run |") == len(STAGES["training"].bars + STAGES["memory"].bars)
    assert not (tmp_path / "results").exists()
