"""The stages of `make gpu`. Each runs as a process with its own time limit.

`python -m benchmarks.gpu.stages NAME FILE PLACE SECONDS` is such a process. It writes its results to FILE.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu import frameworks, suites
from benchmarks.gpu.stage_results import StageResults
from benchmarks.gpu.suites import Suite


class Stage(NamedTuple):
    """What a stage does, its time limit, and the bars it reports.

    Its work is a suite of tests, or a module of this package whose ``run`` takes the results, place and seconds. On a
    GPU, stages that time nothing need not be ``alone`` and run concurrently.
    """

    what: str
    limit_s: int
    work: Suite | str
    bars: tuple[str, ...]
    place_without_gpu: str | None = None
    alone: bool = True

    def run(self, results: StageResults, place: str, limit_s: float) -> None:
        """Run the stage in this process."""
        if isinstance(self.work, Suite):
            suites.run(self.work, results, place, limit_s)
            return
        module = import_module(f"benchmarks.gpu.{self.work}")
        run: Callable[[StageResults, str, float], None] = module.run
        run(results, place, limit_s)


def _of_suite(what: str, limit_s: int, suite: Suite, place: str = "emulated") -> Stage:
    return Stage(what, limit_s, suite, suite.bars, place, alone=False)


FACTS = "facts"
STAGES = {
    FACTS: Stage("name the machine", 60, "machine", ()),
    "code": Stage(
        "compile all variants of the kernels",
        40,
        "code",
        ("all variants of the kernels compile", "spills in ordinary loops, bytes"),
        "cpu",
    ),
    "arithmetic": _of_suite("the kernels' suites", 120, suites.ARITHMETIC, "cpu"),
    "parity": _of_suite("the parity matrix and the recipes", 150, suites.PARITY),
    "waits": _of_suite("count what updates wait for", 120, suites.WAITS),
    "streams": _of_suite("two and eight streams, and forked workers", 90, suites.STREAMS),
    "frameworks": Stage(
        "train with the frameworks that are installed, under `ampmon run`",
        120,
        "frameworks",
        (frameworks.BAR,),
        alone=False,
    ),
    "kernels": Stage(
        "time the kernels beside torch's unscaling and a copy",
        50,
        "timed",
        (
            "statistics beside one read, fp32",
            "statistics beside one read, fp16",
            "statistics beside one read, bf16",
            "statistics and unscaling beside torch's, fp32",
            "statistics and unscaling beside torch's, fp16",
        ),
    ),
    "host": Stage(
        "time what the host adds to an update",
        30,
        "host",
        (
            "stall of the first update, ms",
            "added to an unsampled update of 6 tensors, us",
            "added to an unsampled update of 148 tensors, us",
        ),
    ),
    "memory": Stage(
        "bytes of tables, pinned memory and samples",
        45,
        "memory",
        ("memory that sampling takes, of the gradients'",),
    ),
    "training": Stage(
        "train GPT-2 small in turns with the stock scaler",
        150,
        "training",
        tuple(
            f"{kind}, {optimizer}"
            for optimizer in ("AdamW", "fused AdamW")
            for kind in ("GPT-2, default settings", "GPT-2, no update sampled")
        ),
    ),
}
TOTAL_S = 600


def main() -> None:
    """Run the stage on the command line. An exception in it counts as the stage's failure."""
    name, file, place, limit_s = sys.argv[1:]
    os.environ["AMPMON_MODE"] = "offline"
    STAGES[name].run(StageResults(Path(file)), place, float(limit_s))


if __name__ == "__main__":
    main()
