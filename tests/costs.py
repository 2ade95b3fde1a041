"""Counts the processor time that each folder of tests takes, and holds it to a budget.

The time of all processes that a test starts is in it, but for those that leave the tree of their test (a sender that
outlives its trainer). It is read from `/proc`, so it is counted on Linux only.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest


TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")
TESTS = Path(__file__).parent


def spent_s() -> float:
    """The processor time of this process and its descendants so far, in seconds; 0 where there is no `/proc`."""
    parents, ticks = {}, {}
    for stat in PROC.glob("[0-9]*/stat"):
        try:
            fields = stat.read_bytes().rpartition(b")")[2].split()
        except OSError:  # it ended just now; its parent has its time, or will have
            continue
        pid = int(stat.parent.name)
        parents[pid] = int(fields[1])
        ticks[pid] = sum(map(int, fields[11:15]))
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(ticks.get(pid, 0) for pid in family) / TICKS_PER_S


class Costs:
    """Adds up, for each file, what was spent while its tests ran."""

    def __init__(self) -> None:
        self.by_file: Counter[str] = Counter()
        self._counted_s = 0.0

    def count(self, file: str) -> None:
        """Charge to ``file`` what was spent since the last call."""
        now_s = spent_s()
        self.by_file[file] += max(0.0, now_s - self._counted_s)
        self._counted_s = now_s

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Iterator[None]:
        if not self._counted_s:
            self.count("(start)")
        result = yield
        if nextitem is None or nextitem.path != item.path:
            self.count(str(item.path.relative_to(TESTS)))
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        if nextitem is None:  # the browser ends now, and nobody in the tree waits for its processes
            self.count(str(item.path.relative_to(TESTS)))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if (output := getattr(session.config, "workeroutput", None)) is not None:
            output["costs"] = dict(self.by_file)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object, error: object) -> None:
        self.by_file.update(getattr(node, "workeroutput", {}).get("costs", {}))

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        if (file := os.environ.get("COSTS_FILE")) and not hasattr(config, "workeroutput"):
            Path(file).write_text(json.dumps(self.by_file, indent=0))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Costs(), "ampmon-costs")
