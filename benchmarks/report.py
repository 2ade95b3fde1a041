"""The form of a committed result: what the figures depend on, and a table of rows for each benchmark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple


class Benchmark(NamedTuple):
    """What is measured, and the module whose ``measure`` takes a folder to work in and gives rows of equal columns.

    The module's docstring says how it measures, and goes into the report.
    """

    title: str
    module: ModuleType


def as_markdown(title: str, benchmarks: Mapping[str, Benchmark], figures: Mapping[str, Any]) -> str:
    """The figures as tables, for those of the benchmarks that were run."""
    parts = [f"# {title}", _about(figures)]
    for name, benchmark in benchmarks.items():
        if rows := figures.get(name):
            parts += [f"## {benchmark.title}", (benchmark.module.__doc__ or "").strip()]
            parts.append(table(rows))
    return "\n\n".join(parts) + "\n"


def write(path: Path, markdown: str, figures: Mapping[str, Any]) -> None:
    """Both forms side by side: ``path`` with .json and with .md behind it."""
    path.parent.mkdir(exist_ok=True)
    path.with_name(f"{path.name}.json").write_text(json.dumps(figures, indent=2) + "\n")
    path.with_name(f"{path.name}.md").write_text(markdown)


def _about(figures: Mapping[str, Any]) -> str:
    machine = ", ".join(f"{key} {value}" for key, value in figures["machine"].items())
    about = f"Measured by `{figures['command']}` on: {machine}."
    if beside := figures.get("peers"):
        versions = ", ".join(f"{peer} {version}" for peer, version in beside.items())
        about += f" Beside: {versions}."
    return about


def table(rows: list[dict[str, Any]]) -> str:
    """Rows of equal columns in Markdown."""
    # A column of lists holds what the others were made of: it is in the JSON.
    names = [name for name in rows[0] if not any(isinstance(row[name], list) for row in rows)]
    table = [f"| {' | '.join(names)} |", "| --- " * len(names) + "|"]
    table += [f"| {' | '.join(_cell(row[name]) for name in names)} |" for row in rows]
    return "\n".join(table)


def _cell(value: object) -> str:
    return "" if value is None else str(value)
