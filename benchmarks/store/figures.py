"""The server's time for every figure, for runs of ten thousand to ten million updates, one in a hundred sampled.

Requests go over HTTP on loopback to a server in its own process, without an ETag, at a width of 1000 pixels. They cover
the whole run or a random hundredth of it, by step and by time. Requests of all kinds and sizes take turns. The samples
are real ones of 148 parameters, recombined.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from ampmon_server.charts import FIGURES
from ampmon_server.settings import Settings
from benchmarks.store import FULL, Effort
from benchmarks.store.databases import beside_postgresql, served
from benchmarks.store.filling import SPACING_US, START, copy, fill
from benchmarks.store.real import real
from benchmarks.store.timing import Client, Times, in_turns
from benchmarks.store.track import track


BAR_MS, BAR_RATIO = 30.0, 1.5
WIDTH = 1000
ABOUT_ONE = {"parameter", "histogram"}
"""Figures of the parameter that the reader chose."""
ZOOM = 100
"""A zoomed request covers the run's length divided by this."""


class Question(NamedTuple):
    """A request for a figure. ``updates`` identifies the run by its length."""

    figure: str
    view: str
    x: str
    updates: int


def measure(directory: Path, effort: Effort = FULL) -> list[dict[str, Any]]:
    """A row for each figure, view and axis. Takes some minutes at ten million updates. Fills ``directory``."""
    settings = Settings(data_directory=directory / "sqlite")
    samples = real(effort.real_samples)
    runs = fill(settings, [(track(size, seed=size), samples) for size in effort.sizes])
    parameter = samples.parameters[0].name
    rows = _on_engine("SQLite", settings, runs, effort, parameter)

    def of_copy(copied: Settings) -> list[dict[str, Any]]:
        copy(settings, copied, runs)
        return _on_engine("PostgreSQL", copied, runs, effort, parameter)

    return beside_postgresql(rows, directory, of_copy)


def _on_engine(
    engine: str, settings: Settings, runs: Sequence[UUID], effort: Effort, parameter: str
) -> list[dict[str, Any]]:
    of = dict(zip(effort.sizes, runs, strict=True))
    with served(settings) as (url, token, _):
        client, path = Client(token), f"{url}/api/v1/runs"
        asks: dict[Question, Callable[[], object]] = {
            question: partial(_ask, client, f"{path}/{of[question.updates]}", parameter, question)
            for question in map(
                Question._make, product(FIGURES, ("whole", "zoomed"), ("step", "time"), of)
            )
        }
        times = in_turns(asks, "figures", limit_s=effort.figures_s)
    return _rows(engine, times, effort.sizes)


def _ask(client: Client, run: str, parameter: str, question: Question) -> bytes:
    path = f"{run}/figures/{question.figure}?width={WIDTH}&x={question.x}"
    if question.figure in ABOUT_ONE:
        path += f"&parameter={parameter}"
    if question.view == "zoomed":
        length = max(question.updates // ZOOM, 1)
        start = random.randrange(question.updates - length)
        stop = start + length
        if question.x == "time":
            start, stop = (START + SPACING_US * step for step in (start, stop))
        path += f"&start={start}&stop={stop}"
    return client.get(path)


def _rows(
    engine: str, times: Mapping[Question, Times], sizes: Sequence[int]
) -> list[dict[str, Any]]:
    """The times of all sizes side by side, and the ratio of the largest to the smallest."""
    rows = []
    for figure, view, x in dict.fromkeys(question[:3] for question in times):
        of = {size: times[Question(figure, view, x, size)] for size in sizes}
        greatest = of[max(sizes)].p95
        ratio = greatest / of[min(sizes)].p95
        row: dict[str, Any] = {"engine": engine, "figure": figure, "view": view, "x": x}
        for size in sizes:
            row[f"{size:,} p50_ms"] = round(of[size].p50, 1)
            row[f"{size:,} p95_ms"] = round(of[size].p95, 1)
        holds = greatest <= BAR_MS and ratio <= BAR_RATIO
        rows.append(
            {**row, "ratio": round(ratio, 2), "holds": "yes" if holds else "no", "note": None}
        )
    return rows
