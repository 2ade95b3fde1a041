"""Verify on a real GPU, in at most ten minutes, what the tests show without one, and measure what they cannot.

Each stage is a process with a time limit, and its results are written as they arrive. Stages that time nothing run
concurrently. Without a GPU, only stages that need none run. The exit code is 1 if a bar failed on a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any, NamedTuple, TypeAlias

from benchmarks import commits
from benchmarks.gpu.result import Result, claim, last_line
from benchmarks.gpu.stage_results import FAILED, NOT_RUN, PASSED, read_results
from benchmarks.gpu.stages import FACTS, STAGES, TOTAL_S
from benchmarks.gpu.suites import search_path
from benchmarks.report import table


STATES = (PASSED, FAILED, NOT_RUN)
ROOT = Path(__file__).parents[2]
CODE = (":/", ":/!benchmarks/results")
NEEDED = {
    **{name: name for name in ("torch", "numpy", "msgspec", "urllib3")},
    **{name: name for name in ("rich", "pytest", "hypothesis")},
    "sklearn": "scikit-learn",
}
"""Imported modules, and the packages that provide them."""
LEAST_S = 5
"""With less time left, no stage starts."""
LOOK_S = 2.0
SHOWN = 5
"""How many failures of a stage are printed."""


class Outcome(NamedTuple):
    """How a stage's process ended ("done", "cut off" or an exit code), and the end of its output."""

    state: str
    seconds: float
    words: str


def stage_command(name: str, file: Path, place: str, limit_s: float) -> list[str]:
    """The command that runs a stage. The stage writes its results to ``file``."""
    return [sys.executable, "-m", "benchmarks.gpu.stages", name, str(file), place, str(limit_s)]


def run_stage(
    command: list[str], log: Path, limit_s: float, changed: Callable[[float], None]
) -> Outcome:
    """Run a stage in its own process, and kill all it started. Call ``changed`` with the seconds while it runs."""
    environment = {**os.environ, "PYTHONPATH": search_path()}
    began = time.monotonic()
    with log.open("w") as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    state = "cut off"
    try:
        while (left := began + limit_s - time.monotonic()) > 0:
            try:
                code = process.wait(min(left, LOOK_S))
                state = "done" if code == 0 else f"ended with exit code {code}"
                break
            except subprocess.TimeoutExpired:
                changed(time.monotonic() - began)
    finally:
        _end(process)
    words = log.read_text(errors="replace")[-2000:]
    return Outcome(state, time.monotonic() - began, "" if state == "done" else words)


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # it leads its own session and process group
    process.wait()


def missing() -> list[str]:
    """The packages that the stages need and that are not installed."""
    return [package for name, package in NEEDED.items() if find_spec(name) is None]


Runner: TypeAlias = Callable[[list[str], Path, float, Callable[[float], None]], Outcome]


class Run:
    """One call of `make gpu`: its stages, results folder and deadline. ``run`` runs a stage."""

    def __init__(
        self, arguments: argparse.Namespace, folder: Path, run: Runner = run_stage
    ) -> None:
        self._arguments = arguments
        self._run = run
        self._folder = folder
        self._until = time.monotonic() + arguments.seconds
        self._lock = threading.Lock()
        self.result = Result(arguments.commit or commits.newest(*CODE, digits="12"))
        self.on_gpu = False
        self.chosen: list[str] = arguments.stages or [name for name in STAGES if name != FACTS]

    def start(self) -> bool:
        """Identify the machine, and load its earlier results if needed. False if the machine cannot be identified."""
        if not self._stage(FACTS, "cuda"):
            return False
        self.on_gpu = self.result.machine["gpu"] != "none"
        if not self.on_gpu:
            print("There is no GPU here: what needs none runs, and the rest is not run.")
        elif self._arguments.stages or self._arguments.resume:
            self.result.continue_from(self._path(), [] if self._arguments.resume else self.chosen)
            if self._arguments.resume:
                unknown = {bar["stage"] for bar in self.result.bars() if bar["state"] == NOT_RUN}
                self.chosen = [name for name in self.chosen if name in unknown]
        return True

    def stages(self) -> None:
        """Run the chosen stages. On a GPU, those that time nothing run concurrently, then the others one by one."""
        at_once = [name for name in self.chosen if self.on_gpu and not STAGES[name].alone]
        with ThreadPoolExecutor(max(len(at_once), 1)) as threads:
            list(threads.map(self._begin, at_once))
        for name in self.chosen:
            if name not in at_once:
                self._begin(name)

    def _begin(self, name: str) -> None:
        place = "cuda" if self.on_gpu else STAGES[name].place_without_gpu
        if place is None or (place == "emulated" and not which("g++")):
            needs = "a GPU" if place is None else "g++, or a GPU"
            print(f"{name}: not run, for it needs {needs}.", flush=True)
            return
        limit_s = self._limit(name)
        if limit_s < LEAST_S:
            print(f"{name}: not run, for no time is left.", flush=True)
            return
        print(f"{name}, at most {limit_s:.0f} s: {STAGES[name].what}.", flush=True)
        self._stage(name, place)

    def _limit(self, name: str) -> float:
        left: float = self._until - time.monotonic()
        limit_s = float(STAGES[name].limit_s)
        return min(left, limit_s) if self.on_gpu or name == FACTS else 10.0 * limit_s

    def _stage(self, name: str, place: str) -> bool:
        """Run a stage and write its results as they arrive. Return whether it finished."""
        file = self._folder / f"{name}.json"

        def changed(seconds: float) -> None:
            self._hear(name, read_results(file), "under way", seconds)

        limit_s = self._limit(name)
        command = stage_command(name, file, place, limit_s)
        outcome = self._run(command, file.with_suffix(".log"), limit_s, changed)
        said = read_results(file)
        if outcome.words:
            said["failures"].append({"what": outcome.state, "why": outcome.words})
        self._hear(name, said, outcome.state, outcome.seconds)
        self._print(name, said, outcome)
        return outcome.state == "done"

    def _hear(self, name: str, said: dict[str, Any], state: str, seconds: float) -> None:
        with self._lock:
            self.result.hear(name, said, state, seconds)
            self.save()

    def _print(self, name: str, said: dict[str, Any], outcome: Outcome) -> None:
        lines = [f"  {each['what']}: {last_line(each['why'])}" for each in said["failures"][:SHOWN]]
        if outcome.words:
            lines.insert(0, f"  {outcome.state}. Its last words:\n{outcome.words[-600:]}")
        if name != FACTS:
            counted = [f"{self.result.count(each, [name])} {each}" for each in STATES]
            lines.append(f"  {name}: bars: {', '.join(counted)}; {outcome.seconds:.0f} s")
        if lines:
            print("\n".join(lines), flush=True)

    def _path(self) -> Path:
        return Path(self._arguments.results / self.result.name())

    def save(self) -> None:
        """Write the results so far, if on a GPU."""
        if self.on_gpu:
            self.result.write(self._arguments.results)

    def end(self) -> int:
        """Print the results. Return 1 if a bar failed on a GPU, else 0."""
        print(f"\n{table(self.result.bars(self.chosen))}")
        if not self.on_gpu:
            return 0
        print(f"\n{claim(self.result.figures())}\n{self.result.write(self._arguments.results)}")
        return int(self.result.count(FAILED, self.chosen) > 0)


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line. Exits the process if it is invalid."""
    names = [name for name in STAGES if name != FACTS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    limits = ", ".join(f"{name} ({STAGES[name].limit_s} s)" for name in names)
    parser.add_argument(
        "stages", nargs="*", metavar="STAGE", help=f"only these, of: {limits}; default all"
    )
    parser.add_argument(
        "--resume", action="store_true", help="run the stages of which a bar was not run before"
    )
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument(
        "--seconds", type=float, default=TOTAL_S, help=f"of all stages; default {TOTAL_S}"
    )
    parser.add_argument("--commit", help="what is proven, where git cannot tell")
    arguments = parser.parse_args(words)
    if unknown := set(arguments.stages) - set(names):
        parser.error(f"no stage is named {', '.join(sorted(unknown))}: there are {limits}")
    return arguments


def main() -> int:
    """Run the requested stages and return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(parsed(), Path(folder))
        if not run.start():
            print("The machine could not be asked what it is.")
            return 1
        run.stages()
        return run.end()


if __name__ == "__main__":
    if absent := missing():
        print(f"Missing here: {', '.join(absent)}. Try: pip install {' '.join(absent)}")
        sys.exit(2)
    sys.exit(main())
