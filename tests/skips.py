"""Prints at the end which tests were skipped for a missing program, and the command that installs it.

With `--complete`, a skipped test fails the run unless it has the mark ``gpu``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tools import HOW, TOOLS


def skipped(reports: list[pytest.TestReport]) -> tuple[list[str], list[str]]:
    """A line per missing tool, and the names of tests skipped for other reasons, without those marked ``gpu``."""
    counts: Counter[str] = Counter()
    others = []
    for report in reports:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        tool = next((tool for tool in TOOLS if reason.endswith(tool.missing)), None)
        if tool:
            counts[tool.name] += 1
        elif "gpu" not in report.keywords:
            others.append(f"{report.nodeid}: {reason}")
    return [f"{n} tests were skipped: {name} is missing" for name, n in counts.items()], others


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--complete", action="store_true", help="fail if a test is skipped that needs no GPU"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs a CUDA device, and is skipped without one")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("there is no GPU here")


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    result = yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.getoption("--complete") and reporter and not session.exitstatus:
        lines, others = skipped(reporter.stats.get("skipped", []))
        if lines or others:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
    return result


def pytest_unconfigure(config: pytest.Config) -> None:
    """Print below pytest's own summary, where people look first."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:  # in a worker
        return
    lines, others = skipped(reporter.stats.get("skipped", []))
    if lines:
        lines += [f"Install what they need: {HOW}"]
    if config.getoption("--complete"):
        lines += [f"Skipped, though it needs no GPU: {other}" for other in others]
    for line in lines:
        reporter.write_line(line, bold=True)
