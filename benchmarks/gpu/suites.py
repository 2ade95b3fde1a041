"""Stages that run the tests of the emulated device, in processes that continue where the previous one ended.

A test that ends its process or breaks the device costs only itself. Bars say how many tests failed, and what the tests
counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gpu.stage_results import StageResults


ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
RESERVE_S = 3.0
"""The part of a stage's time that is reserved for its report."""
TEST_S = 60
"""The time limit of one test."""
ENDED = "its process ended, or it took too long"
PLUGINS = ("isolated", "skips", "benchmarks.gpu.tally", "no:cacheprovider")


class Suite(NamedTuple):
    """Test files, further tests for a GPU only, and the tests' figures that must add up to 0, by bar.

    ``table`` is the name of the figures' table.
    """

    bar: str
    files: tuple[str, ...]
    on_cuda: tuple[str, ...] = ()
    figures: Mapping[str, str] = {}
    table: str = ""

    @property
    def bars(self) -> tuple[str, ...]:
        return (self.bar, *self.figures)


ARITHMETIC = Suite(
    "the kernels count and unscale as torch does, NaN payloads apart",
    ("probe/kernel_suite.py", "probe/edges_suite.py"),
)
PARITY = Suite(
    "training ends bit for bit as with the stock scaler",
    (
        "scaler/test_parity.py",
        "device/layouts_suite.py",
        "device/training_suite.py",
        "device/recipes_suite.py",
    ),
    (
        "scaler/test_graphs.py::test_a_capture_is_not_broken",
        "scaler/test_gradient_kinds.py::test_parameters_may_lie_on_several_devices",
        "scaler/test_gear.py",
        "scaler/test_measure_on_request.py",
        "scaler/test_preflight.py",
    ),
)
WAITS = Suite(
    "no call waits in torch's mode that makes waits errors",
    ("scaler/test_cuda.py", "device/waits_suite.py"),
    (
        "probe/test_ring.py::test_a_gpus_copies_arrive",
        "scaler/test_activation_hooks.py::test_a_gpu_is_never_waited_for",
        "scaler/test_budget_kept.py::test_device_time_is_reported_without_waiting",
    ),
    {
        "added waits, by the profiler": "added_waits",
        "added allocations of pinned memory": "added_pinned_allocations",
    },
    "waits",
)
STREAMS = Suite(
    "records are right on streams of their own, behind delays",
    ("device/streams_suite.py",),
    (),
    {"wrong records": "wrong_records", "workers that died": "dead_workers"},
    "streams",
)


class Seen(NamedTuple):
    """The states of tests by name, why some failed, and their figures."""

    collected: int
    states: dict[str, str]
    why: dict[str, str]
    figures: list[dict[str, Any]]

    @property
    def ended(self) -> int:
        return sum(state != "started" for state in self.states.values())

    def counts(self) -> str:
        """The number of tests in each state, in words."""
        states = Counter(self.states.values())
        words = [f"{states[name]} {name}" for name in ("passed", "failed", "skipped")]
        unknown = self.collected - states["passed"] - states["failed"] - states["skipped"]
        return ", ".join([*words, f"{unknown} not run"] if unknown > 0 else words)


def seen(lines: Iterable[str]) -> Seen:
    """Read the lines of a tally. A test that started but did not end before the next process has failed."""
    collected = 0
    states: dict[str, str] = {}
    why: dict[str, str] = {}
    figures: list[dict[str, Any]] = []
    for line in lines:
        entry = json.loads(line)
        if "collected" in entry:
            if not collected:
                collected = entry["collected"]
            for name in [name for name, state in states.items() if state == "started"]:
                states[name], why[name] = "failed", ENDED
            continue
        name, state = entry["test"], entry["state"]
        if states.get(name) == "failed":
            continue
        states[name] = state
        if state == "failed":
            why[name] = entry.get("why", "")
        if entry.get("figures"):
            figures.append({"test": name, **entry["figures"]})
    return Seen(collected, states, why, figures)


def search_path() -> str:
    """A PYTHONPATH that starts with the tests and the project, which need not be installed."""
    paths = [str(TESTS), str(ROOT), str(ROOT / "server"), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(filter(None, paths))


def environment(place: str) -> dict[str, str]:
    """The environment of a test process."""
    return {
        **os.environ,
        "PYTHONPATH": search_path(),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # other plugins may be installed
        "TEST_DEVICE": place,
        "TRITON_INTERPRET": str(int(place != "cuda")),
        # Matrix products then add up in the same order on every stream.
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }


def run(suite: Suite, results: StageResults, place: str, limit_s: float) -> None:
    """Run the suite on a device, in as many processes as it takes, and report results as they arrive."""
    until = time.monotonic() + limit_s - RESERVE_S
    with tempfile.TemporaryDirectory() as folder:
        tally, log = Path(folder, "tally"), Path(folder, "log")
        ended = -1
        while True:
            code = _process(suite, results, place, (tally, log), until)
            now = _read(tally)
            over = code is None
            if not (now.collected or now.states or over):
                words = log.read_text(errors="replace")[-2000:]
                results.failures({"pytest": f"exit code {code}: {words}"})
                results.bar(suite.bar, False, "no test ran", "0 failed")
                return
            if now.ended >= now.collected or now.ended == ended or over:
                break
            ended = now.ended
        _report(suite, results, _read(tally, over=not over))


def _process(
    suite: Suite, results: StageResults, place: str, files: tuple[Path, Path], until: float
) -> int | None:
    """Run one process. Return its exit code, or None if it was killed when the time was over."""
    tally, log = files
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(ROOT), "-q"]
    command += ["--noconftest", "--import-mode=importlib", "--tally", str(tally)]
    command += [word for plugin in PLUGINS for word in ("-p", plugin)]
    if find_spec("pytest_timeout"):
        limit_s = TEST_S if place == "cuda" else 10 * TEST_S
        command += ["-p", "pytest_timeout", f"--timeout={limit_s}", "--timeout-method=thread"]
    chosen = suite.files + (suite.on_cuda if place == "cuda" else ())
    command += [str(TESTS / each) for each in chosen]
    with (
        log.open("w") as out,
        subprocess.Popen(
            command, cwd=ROOT, env=environment(place), stdout=out, stderr=subprocess.STDOUT
        ) as process,
    ):
        while time.monotonic() < until:
            try:
                return process.wait(1.0)
            except subprocess.TimeoutExpired:
                _report(suite, results, _read(tally))
        process.kill()
    return None


def _read(tally: Path, *, over: bool = False) -> Seen:
    """Read the tally. If the tests are ``over``, a test that started but did not end has failed."""
    lines = tally.read_text().splitlines() if tally.exists() else []
    return seen([*lines, json.dumps({"collected": 0})] if over else lines)


def _report(suite: Suite, results: StageResults, found: Seen) -> None:
    done = found.ended >= found.collected > 0
    good = None
    if done or found.why:
        good = not found.why and "passed" in found.states.values()
    results.failures(found.why)
    results.bar(suite.bar, good, found.counts(), "0 failed")
    if suite.table and found.figures:
        names = list(dict.fromkeys(name for each in found.figures for name in each))
        rows = [{name: each.get(name) for name in names} for each in found.figures]
        results.rows(
            suite.table, [{**row, "test": str(row["test"]).rpartition("::")[2]} for row in rows]
        )
    for bar, name in suite.figures.items():
        values = [each[name] for each in found.figures if name in each]
        total = sum(values)
        holds = False if total else True if done and values else None
        results.bar(bar, holds, total if values else None, 0, f"in {len(values)} cells")
