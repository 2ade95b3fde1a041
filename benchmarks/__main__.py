"""Runs the benchmarks and writes benchmarks/results/MACHINE.json and .md, for the machine at hand."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import host_cost, ingest, machine, sample_cost


class Benchmark(NamedTuple):
    """What is measured, and how: a folder to work in goes in, rows come out."""

    title: str
    measure: Callable[[Path], list[dict[str, Any]]]


RESULTS = Path(__file__).parent / "results"
BENCHMARKS = {
    "host_cost": Benchmark(
        "Time added on the host to an update that is not sampled, spool write included, sender off",
        host_cost.measure,
    ),
    "sample_cost": Benchmark(
        "One sample of 124 million fp32 gradients in 148 tensors, in multiples of the stock unscale_",
        sample_cost.measure,
    ),
    "ingest": Benchmark("Ingest and figures over HTTP, SQLite, one client", ingest.measure),
}


def run(names: list[str]) -> dict[str, Any]:
    """The figures of the benchmarks named. Takes some minutes for all; one torch thread."""
    torch.set_num_threads(1)
    figures: dict[str, Any] = {"machine": machine.describe()}
    for name in names:
        with tempfile.TemporaryDirectory() as directory:
            figures[name] = BENCHMARKS[name].measure(Path(directory))
    return figures


def as_markdown(figures: dict[str, Any]) -> str:
    about = ", ".join(f"{key} {value}" for key, value in figures["machine"].items())
    parts = ["# What monitoring costs", f"Measured by `make bench` on: {about}."]
    for name, benchmark in BENCHMARKS.items():
        if rows := figures.get(name):
            table = [f"| {' | '.join(rows[0])} |", "| --- " * len(rows[0]) + "|"]
            table += [f"| {' | '.join(map(str, row.values()))} |" for row in rows]
            parts += [f"## {benchmark.title}", "\n".join(table)]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; default all"
    )
    names = parser.parse_args().names or list(BENCHMARKS)
    unknown = set(names) - set(BENCHMARKS)
    if unknown:
        parser.error(
            f"no benchmark is named {', '.join(sorted(unknown))}: there are {', '.join(BENCHMARKS)}"
        )
    report = run(names)
    text = as_markdown(report)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{machine.slug()}.json").write_text(json.dumps(report, indent=2) + "\n")
    (RESULTS / f"{machine.slug()}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
