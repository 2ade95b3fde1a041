"""Runs a pytest command in rounds beside busy loops, and counts which tests fail and what a round costs."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree


@dataclass(frozen=True)
class Round:
    """One run of the suite. On Linux ``cpu_s`` includes processes that outlived it."""

    exit_code: int
    tests: int
    failed: Sequence[str]
    wall_s: float
    cpu_s: float

    @property
    def passed(self) -> bool:
        return self.exit_code == 0 and self.tests > 0 and not self.failed


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keep ``count`` processes of this interpreter busy until the block ends."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run(command: Sequence[str], report: Path) -> Round:
    """Run ``command``, which writes JUnit XML to ``report``, and wait until all of its processes have ended."""
    report.unlink(missing_ok=True)
    began_s, before_s = time.monotonic(), _children_s()
    reaper = [sys.executable, "-m", "campaigns.busy.reaper"]
    code = subprocess.run([*reaper, *command], check=False).returncode
    results = dict(_results(report))
    return Round(
        exit_code=code,
        tests=len(results),
        failed=[name for name, failed in results.items() if failed],
        wall_s=time.monotonic() - began_s,
        cpu_s=_children_s() - before_s,
    )


def line(number: int, each: Round) -> str:
    return (
        f"round {number}: {'passed' if each.passed else 'FAILED'}, {each.tests} tests, "
        f"{len(each.failed)} failed, {each.wall_s:.0f} s wall, {each.cpu_s:.0f} s processor"
    )


def failures(rounds: Sequence[Round]) -> list[str]:
    """Each failed test with the number of rounds in which it failed, most frequent first."""
    counts = Counter(name for each in rounds for name in each.failed)
    return [f"failed in {n} of {len(rounds)} rounds: {name}" for name, n in counts.most_common()]


def _results(report: Path) -> Iterator[tuple[str, bool]]:
    """Each test's name and whether it failed; nothing if the suite wrote no report."""
    if not report.exists():
        return
    for case in ElementTree.parse(report).iter("testcase"):
        failed = case.find("failure") is not None or case.find("error") is not None
        yield f"{case.get('classname')}::{case.get('name')}", failed


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
