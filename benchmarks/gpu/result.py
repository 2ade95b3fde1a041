"""The result of `make gpu`: the reports of all stages, whether their bars hold, and the files that store this.

The bars of a stage that was cut off or did not run are "not run". A later run of some stages keeps the results of the
others if commit, GPU and versions are the same.
"""

from __future__ import annotations

import ast
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import report
from benchmarks.gpu.stage_results import FAILED, NOT_RUN, PASSED
from benchmarks.gpu.stages import FACTS, STAGES
from benchmarks.report import Benchmark


BENCHMARKS = Path(__file__).parents[1]
SUFFIX = "-gpu"
SAME = ("commit", "gpu", "driver", "torch", "triton")
WHY_MAX, FAILURES_MAX = 600, 40


class Result:
    """A result that grows stage by stage. The first stage fills ``machine``."""

    def __init__(self, commit: str) -> None:
        self.machine: dict[str, Any] = {"commit": commit}
        self._stages: dict[str, dict[str, Any]] = {}
        self._said: dict[str, dict[str, Any]] = {}

    def hear(self, stage: str, said: dict[str, Any], state: str, seconds: float) -> None:
        """Replace a stage's earlier report by its report so far."""
        self._said[stage] = said
        limit = STAGES[stage].limit_s
        self._stages[stage] = {
            "stage": stage,
            "seconds": round(seconds),
            "limit": limit,
            "state": state,
        }
        if stage == FACTS:
            self.machine.update(said["facts"])

    def continue_from(self, path: Path, but: Iterable[str]) -> None:
        """Keep an earlier result's stages, except ``but``, if it is of the same code on the same machine."""
        if not path.with_name(f"{path.name}.json.gz").exists():
            return
        before = report.read(path)
        if any(before["machine"].get(name) != self.machine.get(name) for name in SAME):
            return
        for stage in before["stages"]:
            name = stage["stage"]
            if name in STAGES and name not in but:
                self._stages[name], self._said[name] = stage, before["said"][name]

    def bars(self, stages: Iterable[str] = STAGES) -> list[dict[str, Any]]:
        """A row for each bar of these stages, reported or not."""
        rows = []
        for stage in stages:
            said = {bar["bar"]: bar for bar in self._said.get(stage, {}).get("bars", [])}
            state = self._stages.get(stage, {}).get("state", NOT_RUN)
            for name in STAGES[stage].bars:
                silent = {"bar": name, "limit": "", "value": None}
                # A stage that ended with an error, and not at its limit, has failed.
                silent["state"] = FAILED if state.startswith("ended") else NOT_RUN
                silent["note"] = f"the stage {stage!r}: {state}"
                rows.append({"stage": stage, **said.get(name, silent)})
        return rows

    def count(self, state: str, stages: Iterable[str] = STAGES) -> int:
        """How many bars of these stages are in a state."""
        return sum(bar["state"] == state for bar in self.bars(stages))

    def name(self) -> str:
        """The name of the result's files without an extension."""
        words = re.sub(r"[^a-z0-9]+", "-", str(self.machine.get("gpu", "unknown")).lower())
        return words.strip("-") + SUFFIX

    def figures(self) -> dict[str, Any]:
        """The whole result, as it is stored."""
        return {
            "command": "make gpu",
            "machine": self.machine,
            "bars": self.bars(),
            "stages": list(self._stages.values()),
            "said": {name: self._short(said) for name, said in self._said.items()},
        }

    @staticmethod
    def _short(said: dict[str, Any]) -> dict[str, Any]:
        failures = [
            {**each, "why": _without_places(each["why"])[-WHY_MAX:]}
            for each in said["failures"][:FAILURES_MAX]
        ]
        return {**said, "failures": failures}

    def markdown(self) -> str:
        """The result for readers: bars, stages, tables, and the last line of each failure."""
        figures = self.figures()
        tables: dict[str, Any] = {"bars": figures["bars"], "stages": figures["stages"]}
        for said in figures["said"].values():
            tables.update(said["tables"])
        failures = [
            {"stage": name, "what": each["what"], "why": last_line(each["why"])}
            for name, said in figures["said"].items()
            for each in said["failures"]
        ]
        return report.as_markdown(
            "ampmon on a GPU", _described(), {**figures, **tables, "failures": failures}
        )

    def write(self, folder: Path) -> Path:
        """Write both forms into a folder. Return the path of the Markdown file."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self.name()
        report.write(path, self.markdown(), self.figures())
        return path.with_name(f"{path.name}.md")


def claim(figures: Mapping[str, Any]) -> str:
    """What documentation may claim about a stored result, word for word."""
    machine, bars = figures["machine"], figures["bars"]
    passed = sum(bar["state"] == PASSED for bar in bars)
    text = f"{machine['gpu']}, torch {machine['torch']}, commit {machine['commit']}: "
    text += f"{passed} of {len(bars)} bars passed"
    for state in (FAILED, NOT_RUN):
        names = [bar["bar"] for bar in bars if bar["state"] == state]
        text += f"; {state}: {', '.join(names)}" if names else ""
    return text


def _described() -> dict[str, Benchmark]:
    """The tables, with the docstrings of their modules. These are parsed, because an import takes seconds."""
    modules = {
        "bars": ("Bars", "gpu/result"),
        "stages": ("Stages", "gpu/__main__"),
        "failures": ("Failures", "gpu/suites"),
        "variants": ("All variants of the kernels, compiled for this GPU", "gpu/code"),
        "waits": ("What updates wait for, beside the stock scaler's", "gpu/suites"),
        "streams": ("Records on several streams, and forked workers", "gpu/suites"),
        "kernels": ("The kernels on a GPU", "gpu_kernels"),
        "host": ("What the host adds to an update", "gpu/host"),
        "training": ("A whole training step", "whole_step"),
        "memory": ("Bytes", "gpu/memory"),
    }
    return {
        name: Benchmark(title, ModuleType(file, _docstring(f"{file}.py")))
        for name, (title, file) in modules.items()
    }


def _docstring(file: str) -> str:
    return ast.get_docstring(ast.parse((BENCHMARKS / file).read_text())) or ""


def _without_places(words: str) -> str:
    """Remove this machine's paths, because results are shared."""
    for place in (BENCHMARKS.parent, sys.prefix, Path.home(), tempfile.gettempdir()):
        words = words.replace(f"{place}/", "")
    return words


def last_line(why: str) -> str:
    """A failure's most telling line: the first that pytest marks as its error, else the last."""
    lines = [line.strip() for line in why.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("E ")] or lines[-1:]
    return errors[0][:200].replace("|", "/") if errors else ""
