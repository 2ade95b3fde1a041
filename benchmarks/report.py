"""Writes committed results: what the figures depend on, and a table for each benchmark."""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple


RESULTS = Path(__file__).parent / "results"
RAW_BYTES_MAX = 50_000
"""The size limit of a committed file of raw figures."""


class Benchmark(NamedTuple):
    """A title, and a module whose ``measure`` takes a working directory and returns rows of equal columns.

    The module's docstring explains the measurement and goes into the report.
    """

    title: str
    module: ModuleType


def as_markdown(title: str, benchmarks: Mapping[str, Benchmark], figures: Mapping[str, Any]) -> str:
    """Format the figures as tables, for the benchmarks that were run."""
    parts = [f"# {title}", _about(figures)]
    for name, benchmark in benchmarks.items():
        if rows := figures.get(name):
            parts += [f"## {benchmark.title}", (benchmark.module.__doc__ or "").strip()]
            parts.append(table(rows))
    return "\n\n".join(parts) + "\n"


def write(path: Path, markdown: str, figures: Mapping[str, Any]) -> None:
    """Write ``path`` + ".md" for readers, and ``path`` + ".json.gz" with all figures.

    The same figures give the same bytes. Raises ValueError if they take more than `RAW_BYTES_MAX`.
    """
    raw = compressed(json.dumps(figures, separators=(",", ":")))
    file = path.with_name(f"{path.name}.json.gz")
    if len(raw) > RAW_BYTES_MAX:
        raise ValueError(
            f"{file} would have {len(raw)} bytes, and {RAW_BYTES_MAX} is the limit of what is committed: "
            "keep fewer of the single measurements in the figures."
        )
    path.parent.mkdir(exist_ok=True)
    replace(file, raw)
    replace(path.with_name(f"{path.name}.md"), markdown.encode())


def replace(file: Path, data: bytes) -> None:
    """Replace a file's content atomically."""
    part = file.with_name(f"{file.name}.{os.getpid()}")
    part.write_bytes(data)
    part.replace(file)


def read(path: Path) -> dict[str, Any]:
    """Read the figures that `write` stored under ``path``."""
    found: dict[str, Any] = json.loads(
        gzip.decompress(path.with_name(f"{path.name}.json.gz").read_bytes())
    )
    return found


def compressed(text: str) -> bytes:
    """Gzip ``text`` without a time or file name, so the same text gives the same bytes."""
    buffer = io.BytesIO()
    with gzip.GzipFile("", "wb", fileobj=buffer, mtime=0) as file:
        file.write(text.encode())
    return buffer.getvalue()


def machine_of(figures: Mapping[str, Any]) -> str:
    """The machine of the figures, in words."""
    return ", ".join(f"{key} {value}" for key, value in figures["machine"].items())


def _about(figures: Mapping[str, Any]) -> str:
    about = f"Measured by `{figures['command']}` on: {machine_of(figures)}."
    if beside := figures.get("peers"):
        versions = ", ".join(f"{peer} {version}" for peer, version in beside.items())
        about += f" Beside: {versions}."
    return about


def filled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with all columns of the fullest one, and None where a row lacks one."""
    names = max(rows, key=len)
    return [{name: row.get(name) for name in names} for row in rows]


def table(rows: list[dict[str, Any]]) -> str:
    """Format rows of equal columns as a Markdown table."""
    # Columns of lists hold the single measurements, which only the raw figures keep.
    names = [name for name in rows[0] if not any(isinstance(row[name], list) for row in rows)]
    table = [f"| {' | '.join(names)} |", "| --- " * len(names) + "|"]
    table += [f"| {' | '.join(_cell(row[name]) for name in names)} |" for row in rows]
    return "\n".join(table)


def _cell(value: object) -> str:
    return "" if value is None else str(value)
