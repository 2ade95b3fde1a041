"""Writes a line of JSON for each test as it starts and as it ends, so a killed process leaves its results.

A pytest plugin with the option `--tally FILE`. Tests that FILE already names do not run again, so the next process
continues where the previous one ended.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


BROKEN = ("CUDA error", "AcceleratorError", "device-side assert")
"""After these errors, the device is unusable in this process."""
WHY_MAX = 1500


class Tally:
    def __init__(self, file: Path) -> None:
        self._file = file
        lines = file.read_text().splitlines() if file.exists() else []
        self._known = {each["test"] for line in lines if "test" in (each := json.loads(line))}
        self._session: pytest.Session | None = None

    def _write(self, **entry: Any) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        self._write(collected=len(items))
        left_out = [item for item in items if item.nodeid in self._known]
        items[:] = [item for item in items if item.nodeid not in self._known]
        config.hook.pytest_deselected(items=left_out)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(test=nodeid, state="started")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        entry: dict[str, Any] = {"test": report.nodeid, "state": report.outcome}
        entry |= {"seconds": round(report.duration, 2), "figures": dict(report.user_properties)}
        if report.failed:
            entry["why"] = report.longreprtext[-WHY_MAX:]
            if self._session and any(word in report.longreprtext for word in BROKEN):
                self._session.shouldfail = "the device works no more in this process"
        self._write(**entry)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            why = report.longreprtext[-WHY_MAX:]
            self._write(test=report.nodeid, state="failed", seconds=0, figures={}, why=why)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tally", type=Path, metavar="FILE", help="where tests are recorded")


def pytest_configure(config: pytest.Config) -> None:
    if (file := config.getoption("--tally")) is not None:
        config.pluginmanager.register(Tally(file), "ampmon-tally")
