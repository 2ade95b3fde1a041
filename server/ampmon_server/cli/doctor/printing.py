"""Prints a diagnosis and replays with rich, at most 100 columns wide.

Colours only on terminals, and never as the only sign.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode

import msgspec
from rich.box import SIMPLE
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from ampmon.system.plain import plain, plain_finding
from ampmon.wire import Finding, Severity
from ampmon_server.cli.terminal.answers import scale_of
from ampmon_server.client.answers import (
    GOING_ON,
    RECOMMENDED,
    Diagnosed,
    Run,
    SettingAnswer,
    Simulated,
    SimulationAnswer,
    SkipsAnswer,
)
from ampmon_server.model.notices import NO_UPDATE, STOP, failed_of
from ampmon_server.model.terms import SEVERITIES
from ampmon_server.model.words import count, percent, plural, steps


COLUMNS_MAX = 100
_NAMED = 5
_SCALES = 3
_INDENT = 2
_LABEL = 12
SHAPES: dict[Severity | None, tuple[str, str]] = {
    None: (SEVERITIES["healthy"], "green"),
    "notice": (f"{SEVERITIES['notice']} notice", "cyan"),
    "warning": (f"{SEVERITIES['warning']} warning", "yellow"),
    "critical": (f"{SEVERITIES['critical']} critical", "bold red"),
}
"""The mark and style of each severity. None stands for a run without findings."""


class Paper:
    """Prints a run. ``page`` is the address of a server that shows it, or None if none runs.

    ``log`` is the text log that the run was read from. No server has such a run.
    """

    def __init__(self, run: Run, page: str | None, log: Path | None = None) -> None:
        self._run = run
        self._charts = f"after `ampmon import {log}`" if log else "on the page of `ampmon serve`"
        self._page = page
        self._console = Console(highlight=False)
        self._console.width = min(self._console.width, COLUMNS_MAX)
        # The terminal's own colours, which its user can read.
        self._python = Syntax("", "python", theme="ansi_dark")

    def show(self, diagnosed: Diagnosed) -> None:
        """Print the head, then the findings, the verdict first."""
        self.head(diagnosed)
        if diagnosed.findings:
            self.blank()
        self.findings(diagnosed)

    def head(self, diagnosed: Diagnosed) -> None:
        """Print the run, its effective training, and the rules that failed."""
        run = self._run
        updates = plural(run.updates, "update")
        about = f"  {run.project}, {run.status}, {updates}, {run.run_id}"
        self.write(Text.assemble((plain(run.name), "bold"), (plain(about), "dim")), 0)
        self.write(Text(plain(diagnosed.training.sentence)), 0)
        for words in failed_of(diagnosed.failed):
            self.write(Text(plain(words)), 0)

    def findings(self, diagnosed: Diagnosed) -> None:
        """Print each finding with its reason and fix, worst first, or that nothing was found."""
        findings = diagnosed.findings
        if not findings:
            self._nothing_found(diagnosed.verdict)
        for number, finding in enumerate(map(plain_finding, findings), start=1):
            if number > 1:
                self.blank()
            self._finding(finding, f"{number} of {len(findings)}")

    def _nothing_found(self, verdict: str) -> None:
        if self._run.updates:
            self.write(Text.assemble(SHAPES[None], f"  {plain(verdict)}"), 0)
        else:
            self.write(Text(NO_UPDATE), 0)

    def _finding(self, finding: Finding, place: str) -> None:
        self.write(Text.assemble(SHAPES[finding.severity], "  ", (finding.title, "bold")), 0)
        self.write(Text(f"{place} · {_where(finding)}", "dim"))
        self.write(Text(finding.explanation))
        if finding.stop and self._run.status in GOING_ON:
            self.write(Text(STOP, "bold"))
        if finding.parameters:
            self.write(Text(_named(finding.parameters)))
        if finding.fix:
            self.write(Text(finding.second or RECOMMENDED, "bold"))
        self.code(finding.fix)
        self.write(Text(f"See {self._manual(finding)}{self._chart(finding)}", "dim"))
        if finding.figure and self._page is not None:
            self._unbroken(Text(self._address(finding), "dim"))

    def write(self, words: Text, indent: int = _INDENT) -> None:
        """Print words, wrapped. Print nothing if they are empty."""
        if not words:
            return
        for line in words.wrap(self._console, self._console.width - indent):
            self._unbroken(line, indent)

    @property
    def room(self) -> int:
        """The number of columns beside a label."""
        return self._console.width - _LABEL

    def row(self, label: str, words: str) -> None:
        """Print words beside a label, wrapped below each other."""
        for number, line in enumerate(Text(words).wrap(self._console, self.room)):
            self._unbroken(Text.assemble((f"{'' if number else label:{_LABEL}}", "dim"), line), 0)

    def code(self, code: str) -> None:
        """Print Python code without breaking its lines."""
        if code:
            for line in self._python.highlight(plain(code, lines=True).rstrip("\n")).split("\n"):
                self._unbroken(line, 2 * _INDENT)

    def _unbroken(self, line: Text, indent: int = _INDENT) -> None:
        """Print one line of any length, so that it can be copied."""
        line.rstrip()
        self._console.print(Text(" " * indent).append(line) if line else line, soft_wrap=True)

    def table(self, table: Table) -> None:
        """Print a table, at most as wide as the paper."""
        self._console.print(table)

    def blank(self) -> None:
        self._console.print()

    def _manual(self, finding: Finding) -> str:
        if self._page is None:
            return f"docs/findings/{finding.rule}.md"
        return f"{self._page}/findings/{finding.rule}"

    def _chart(self, finding: Finding) -> str:
        if not finding.figure:
            return ""
        where = ":" if self._page is not None else f" {self._charts}"
        return f", and the chart “{finding.figure}”{where}"

    def _address(self, finding: Finding) -> str:
        """The address of the run's page, at the finding's steps and scaler."""
        query: dict[str, str | int] = {}
        if finding.first_step is not None and finding.last_step is not None:
            query = {"start": finding.first_step, "stop": finding.last_step + 1}
        stream = next(
            (each.stream for each in self._run.streams if each.scaler == finding.scaler), None
        )
        if stream is not None:
            query["stream"] = stream
        return f"{self._page}/#/runs/{self._run.run_id}{'?' if query else ''}{urlencode(query)}"


def _where(finding: Finding) -> str:
    words = finding.rule
    if finding.first_step is not None and finding.last_step is not None:
        words += f" · {steps(finding.first_step, finding.last_step)}"
    return f"{words} · scaler {finding.scaler}" if finding.scaler else words


def _named(parameters: tuple[str, ...]) -> str:
    rest = len(parameters) - _NAMED
    return ", ".join(parameters[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def show_replay(paper: Paper, simulated: Simulated, *, asked: bool) -> None:
    """Print a row for each policy. ``asked`` says whether the user gave one."""
    was = simulated.recorded
    paper.blank()
    paper.write(Text(_heading(simulated), "bold"), 0)
    table = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    for name in ("", "skips", "subnormal", "most frequent scales"):
        table.add_column(name)
    table.add_row("as recorded", *_cells(was))
    if asked:
        row = simulated.simulated
        skips, *rest = _cells(row)
        if not row.skips.known:  # of the recommendation, its words below the table say so
            skips += ": inconclusive"
        table.add_row(_difference(row.policy, was.policy), skips, *rest)
    advised = simulated.recommended
    if advised.code:
        standing = "alternative" if advised.second else "recommended"
        table.add_row(f"{standing}: {_difference(advised.policy, was.policy)}", *_cells(advised))
    paper.table(table)
    paper.write(Text(plain(f"{advised.words} {advised.second}")))
    if advised.second:
        paper.code(advised.code)


def _heading(simulated: Simulated) -> str:
    which = "all" if simulated.whole else "the newest"
    where = steps(simulated.first, simulated.last)
    return plain(f"Replayed: {which} {count(simulated.updates)} updates, {where}")


def _cells(row: SimulationAnswer) -> tuple[str, ...]:
    share = row.subnormal_fraction
    most = sorted(row.scales, key=lambda each: each.updates, reverse=True)[:_SCALES]
    total = sum(each.updates for each in row.scales) or 1.0
    scales = [f"{scale_of(each.scale)} {percent(each.updates / total)}" for each in most]
    ended = f"; gives up: {row.ended}" if row.ended else ""
    return (
        _band(row.skips),
        "not sampled" if share is None else plain(percent(share)),
        plain(", ".join(scales) + ended),
    )


def _band(skips: SkipsAnswer) -> str:
    if skips.low == skips.high:
        return plain(count(skips.low))
    if not skips.known:
        return plain(f"{count(skips.low)} to {count(skips.high)}")
    return plain(f"{count(round(skips.expected))} ({count(skips.low)} to {count(skips.high)})")


def _difference(setting: SettingAnswer, was: SettingAnswer) -> str:
    """Describe a policy by its differences from the run's own."""
    own, other = msgspec.structs.asdict(was), msgspec.structs.asdict(setting)
    changed = [
        f"{name}={scale_of(value) if name == 'init_scale' else f'{value:g}'}"
        for name, value in other.items()
        if name != "name" and value is not None and value != own[name]
    ]
    named = [] if setting.name == was.name else [setting.name]
    return plain(", ".join(named + changed)) or "the same"
