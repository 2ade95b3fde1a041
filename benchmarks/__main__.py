"""Runs the benchmarks. A whole group writes benchmarks/results/MACHINE*.json and .md, for the machine at hand."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import (
    gpu_kernels,
    host_cost,
    ingest,
    machine,
    peers,
    peers_gradients,
    peers_host_cost,
    sample_cost,
    whole_step,
)
from benchmarks.report import Benchmark, as_markdown, write
from benchmarks.store import effort, figures, listeners, rates, run_list, sizes, spikes


class Group(NamedTuple):
    """Benchmarks that make one report, and what its file is called behind the machine's name."""

    title: str
    command: str
    suffix: str
    names: tuple[str, ...]


RESULTS = Path(__file__).parent / "results"
BENCHMARKS = {
    "host_cost": Benchmark(
        "Time added on the host to an update that is not sampled, spool write included, sender busy",
        host_cost,
    ),
    "sample_cost": Benchmark(
        "One sample of 124 million fp32 gradients in 148 tensors, in multiples of the stock unscale_",
        sample_cost,
    ),
    "ingest": Benchmark("Ingest and figures over HTTP, SQLite, one client", ingest),
    "peers_gradients": Benchmark(
        "Looking at 124 million fp32 gradients in 148 tensors, CPU, beside others", peers_gradients
    ),
    "peers_host_cost": Benchmark(
        "Time added on the host to an update, beside others that log four scalars", peers_host_cost
    ),
    "whole_step": Benchmark("A whole training step with default settings", whole_step),
    "gpu_kernels": Benchmark("The kernels on a GPU", gpu_kernels),
    "store_figures": Benchmark("The server's time for a figure", figures),
    "store_spikes": Benchmark("Twenty spikes in a million updates", spikes),
    "store_runs": Benchmark("The list of ten thousand runs", run_list),
    "store_ingest": Benchmark("Updates taken over HTTP", rates),
    "store_listeners": Benchmark("Five hundred listeners while ingesting", listeners),
    "store_bytes": Benchmark("Bytes stored", sizes),
}
GROUPS = {
    "alone": Group(
        "What monitoring costs", "make bench", "", ("host_cost", "sample_cost", "ingest")
    ),
    "probe": Group(
        "What the probe costs, beside others",
        "make bench-probe",
        "-probe",
        ("peers_gradients", "host_cost", "peers_host_cost", "whole_step", "gpu_kernels"),
    ),
    "store": Group(
        "What the store costs, beside others",
        "make bench-store",
        "-store",
        (
            "store_figures",
            "store_spikes",
            "store_runs",
            "store_ingest",
            "store_listeners",
            "store_bytes",
        ),
    ),
}


def run(names: tuple[str, ...], command: str, much: effort.Effort) -> dict[str, Any]:
    """The figures of the benchmarks named, with as ``much`` effort. Takes some minutes for all; one torch thread."""
    torch.set_num_threads(1)
    measured: dict[str, Any] = {"command": command, "machine": machine.describe()}
    if any(name.startswith(("peers", "store")) for name in names):
        measured["peers"] = peers.versions()
    for name in names:
        print(f"{name}: {BENCHMARKS[name].title}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as directory:
            of_store = (much,) if name.startswith("store") else ()
            measured[name] = BENCHMARKS[name].module.measure(Path(directory), *of_store)
    return measured


def chosen(arguments: list[str]) -> Mapping[str, Group]:
    """The groups to report on, by name: those named, and one of the single benchmarks that are."""
    groups = {name: GROUPS[name] for name in arguments if name in GROUPS}
    if singles := tuple(name for name in arguments if name not in GROUPS):
        command = f"python -m benchmarks {' '.join(singles)}"
        groups["singles"] = Group("Some of the benchmarks", command, "", singles)
    return groups


def _arguments() -> argparse.Namespace:
    names = ", ".join((*GROUPS, *BENCHMARKS))
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", default=["alone"], help=f"of {names}; default alone"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a little of the store's; writes no result"
    )
    parser.add_argument(
        "--sizes",
        nargs="+",
        type=int,
        metavar="N",
        help="updates of the runs whose figures are timed",
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - {*GROUPS, *BENCHMARKS}:
        parser.error(f"no benchmark is named {', '.join(sorted(unknown))}: there are {names}")
    return arguments


def main() -> None:
    arguments = _arguments()
    much = effort.QUICK if arguments.quick else effort.FULL
    if arguments.sizes:
        much = much._replace(sizes=tuple(arguments.sizes))
    for name, group in chosen(arguments.names).items():
        measured = run(group.names, group.command, much)
        text = as_markdown(group.title, BENCHMARKS, measured)
        if name in GROUPS and much == effort.FULL:
            write(RESULTS / f"{machine.slug()}{group.suffix}", text, measured)
        print(text)


if __name__ == "__main__":
    main()
