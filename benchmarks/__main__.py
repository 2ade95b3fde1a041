"""Runs the benchmarks and writes benchmarks/results/MACHINE.json and .md, for the machine at hand."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks import host_cost, machine, sample_cost


RESULTS = Path(__file__).parent / "results"
TITLES = {
    "host_cost": "Time added on the host to an update that is not sampled, spool write included, sender off",
    "sample_cost": "One sample of 124 million fp32 gradients in 148 tensors, in multiples of the stock unscale_",
}


def run(names: list[str]) -> dict[str, Any]:
    """The figures of the benchmarks named. Takes some minutes for all; one torch thread."""
    torch.set_num_threads(1)
    figures: dict[str, Any] = {"machine": machine.describe()}
    if "host_cost" in names:
        with tempfile.TemporaryDirectory() as directory:
            figures["host_cost"] = host_cost.measure(Path(directory))
    if "sample_cost" in names:
        figures["sample_cost"] = sample_cost.measure()
    return figures


def as_markdown(figures: dict[str, Any]) -> str:
    about = ", ".join(f"{key} {value}" for key, value in figures["machine"].items())
    parts = ["# What monitoring costs", f"Measured by `make bench` on: {about}."]
    for name, title in TITLES.items():
        if rows := figures.get(name):
            table = [f"| {' | '.join(rows[0])} |", "| --- " * len(rows[0]) + "|"]
            table += [f"| {' | '.join(map(str, row.values()))} |" for row in rows]
            parts += [f"## {title}", "\n".join(table)]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(TITLES)}; default all"
    )
    names = parser.parse_args().names or list(TITLES)
    unknown = set(names) - set(TITLES)
    if unknown:
        parser.error(
            f"no benchmark is named {', '.join(sorted(unknown))}: there are {', '.join(TITLES)}"
        )
    report = run(names)
    text = as_markdown(report)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{machine.slug()}.json").write_text(json.dumps(report, indent=2) + "\n")
    (RESULTS / f"{machine.slug()}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
