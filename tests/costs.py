"""Measures the processor time of each folder of tests and checks it against a budget.

It includes all child processes, except those that leave their test's process tree (a sender that outlives its
trainer). The times come from `/proc`, so this works on Linux only.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from benchmarks import processor


TESTS = Path(__file__).parent
REFERENCE_S = 1.3
"""Seconds to import torch on the machine that set the budgets. A slower machine gets larger budgets in proportion."""
BUDGET_S = {
    "(start)": 30,
    "alerting": 8,
    "architecture": 17,
    "campaigns": 44,
    "cells": 10,
    "core": 15,
    "device": 60,  # a fifth of it is for building the device, once for each torch
    "diagnosis": 9,
    "end_to_end": 30,
    "errors": 9,
    "examples": 28,
    "faults": 9,
    "figures": 8,
    "files": 11,
    "policy": 9,
    "probe": 40,
    "scaler": 50,
    "server": 185,
    "terminal": 10,
    "test_demo.py": 15,
    "test_wheel.py": 10,
    "transport": 27,
    "web": 140,
}
"""Seconds of processor time per folder: about a third more than on an idle, slow machine with two cores."""


def spent_s() -> float:
    """The processor time of this process and its descendants so far, in seconds; 0 without `/proc`."""
    return processor.seconds(os.getpid()) or 0.0


def _named(item: pytest.Item) -> str:
    """The item's file, as seen from this folder: those of campaigns may run beside."""
    return os.path.relpath(item.path, TESTS)


class Costs:
    """Sums up the processor time per file or test."""

    def __init__(self, by: str | None) -> None:
        self.by_test = by == "test"
        self.by_file: Counter[str] = Counter()
        self._counted_s = 0.0
        self._slow = 1.0

    @property
    def budget_s(self) -> dict[str, float]:
        """The budgets scaled to this machine."""
        return {folder: budget * self._slow for folder, budget in BUDGET_S.items()}

    def count(self, file: str) -> None:
        """Add the time since the last call to ``file``."""
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
        if self.by_test:
            self.count(f"{_named(item)}::{item.name}")
        elif nextitem is None or nextitem.path != item.path:
            self.count(_named(item))
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        if nextitem is None:  # the browser ends now, and nothing in the tree waits for its parts
            self.count(_named(item))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object, error: object) -> None:
        self.by_file.update(getattr(node, "workeroutput", {}).get("costs", {}))

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._time_the_machine(session)

    def _time_the_machine(self, session: pytest.Session) -> None:
        if session.config.getoption("--costs") and not hasattr(session.config, "workerinput"):
            self._slow = max(self._slow, import_torch_s() / REFERENCE_S)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._time_the_machine(session)  # it may be slower now
        if (output := getattr(session.config, "workeroutput", None)) is not None:
            output["costs"] = dict(self.by_file)
        elif (
            session.config.getoption("--costs")
            and not session.exitstatus
            and over(self.by_file, self.budget_s)
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        by = terminalreporter.config.getoption("--costs")
        if by == "folder":
            terminalreporter.section("processor time, and its budget")
            lines = table(self.by_file, self.budget_s)
        elif by:
            terminalreporter.section("processor time")
            spent = self.by_file.most_common()
            lines = (f"{s:8.1f} s  {name}" for name, s in spent if s >= 0.05)
        else:
            return
        for line in lines:
            terminalreporter.write_line(line)


def import_torch_s() -> float:
    """The processor time in which a new Python process imports torch."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def by_folder(by_file: Mapping[str, float]) -> Counter[str]:
    """Seconds by folder, or by file for files in none."""
    folders: Counter[str] = Counter()
    for file, seconds in by_file.items():
        folders[file.partition("::")[0].partition("/")[0]] += seconds
    return folders


def over(by_file: Mapping[str, float], budget_s: Mapping[str, float]) -> list[str]:
    """The folders over their budget or without one."""
    return [name for name, s in by_folder(by_file).items() if s > budget_s.get(name, 0.0)]


def table(by_file: Mapping[str, float], budget_s: Mapping[str, float]) -> Iterator[str]:
    """The cost of each folder beside its budget, highest first, and their sum."""
    folders = by_folder(by_file)
    exceeded = over(by_file, budget_s)
    for name, seconds in folders.most_common():
        mark = "  OVER BUDGET" if name in exceeded else ""
        yield f"{seconds:8.1f} s of {budget_s.get(name, 0):4.0f} s  {name}{mark}"
    yield f"{folders.total():8.1f} s of {sum(budget_s.values()):4.0f} s  in all"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--costs",
        nargs="?",
        const="folder",
        choices=("folder", "file", "test"),
        help="print the processor time by folder, file or test; fail if a folder exceeds its budget",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Costs(config.getoption("--costs")), "ampmon-costs")
