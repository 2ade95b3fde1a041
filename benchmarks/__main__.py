"""Run benchmarks. A whole group writes its results to benchmarks/results/MACHINE*.md and .json.gz."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import (
    device_cost,
    gpu_kernels,
    host_cost,
    ingest,
    machine,
    name_cost,
    peers,
    peers_gradients,
    peers_host_cost,
    run_cost,
    sample_cost,
    start_up,
    whole_step,
)
from benchmarks.delivery import backlog, host_time, latency, tail
from benchmarks.delivery import effort as delivery_effort
from benchmarks.diagnosis import arriving, asked, many
from benchmarks.diagnosis import effort as diagnosis_effort
from benchmarks.page import arrival, memory, opening
from benchmarks.page import effort as page_effort
from benchmarks.report import Benchmark, as_markdown, write
from benchmarks.store import alive, figures, listeners, rates, run_list, sizes, spikes
from benchmarks.store import effort as store_effort
from benchmarks.team import access, held, offered, rejected
from benchmarks.team import effort as team_effort


class Group(NamedTuple):
    """Benchmarks that share a report. ``suffix`` follows the machine's name in the names of its files."""

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
    "device_cost": Benchmark(
        "Time added on the host to an update, on an emulated device and with DTensors", device_cost
    ),
    "sample_cost": Benchmark(
        "One sample of 124 million fp32 gradients in 148 tensors, in multiples of the stock unscale_",
        sample_cost,
    ),
    "start_up": Benchmark("Starting a Python below `ampmon run`", start_up),
    "run_cost": Benchmark(
        "Host time of an update, `ampmon run` beside `ampmon.GradScaler`", run_cost
    ),
    "name_cost": Benchmark(
        "Naming the parameters of a script that gives no model, once", name_cost
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
    "store_alive": Benchmark("The server's memory with five hundred runs alive", alive),
    "store_bytes": Benchmark("Bytes stored", sizes),
    "delivery_host": Benchmark("Host time of an update, whatever the sender does", host_time),
    "delivery_latency": Benchmark("From the update to the database", latency),
    "delivery_backlog": Benchmark("A million updates while the server is away", backlog),
    "delivery_tail": Benchmark("What a kill leaves, beside others", tail),
    "diagnosis_asked": Benchmark("The server's time for a diagnosis", asked),
    "diagnosis_arriving": Benchmark("Judging runs as their records arrive", arriving),
    "diagnosis_many": Benchmark("Judging two hundred active runs", many),
    "team_access": Benchmark("Asking who sends, beside an open door", access),
    "team_rejected": Benchmark("Ingest beside a thousand rejected tokens a second", rejected),
    "team_offered": Benchmark("Five hundred small batches a second", offered),
    "team_held": Benchmark("Many pages and trainings for ten minutes", held),
    "page_arrival": Benchmark("From the update to pixels, beside others", arrival),
    "page_opening": Benchmark("A run of ten million updates on the page", opening),
    "page_memory": Benchmark("The page left open at a run that trains", memory),
}
GROUPS = {
    "alone": Group(
        "What monitoring costs",
        "make bench",
        "",
        ("host_cost", "sample_cost", "start_up", "run_cost", "name_cost", "ingest"),
    ),
    "probe": Group(
        "What the probe costs, beside others",
        "make bench-probe",
        "-probe",
        (
            "peers_gradients",
            "host_cost",
            "device_cost",
            "peers_host_cost",
            "whole_step",
            "gpu_kernels",
        ),
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
            "store_alive",
            "store_bytes",
        ),
    ),
    "delivery": Group(
        "What the way to the database costs, and what a kill leaves of it, beside others",
        "make bench-delivery",
        "-delivery",
        ("delivery_host", "delivery_latency", "delivery_backlog", "delivery_tail"),
    ),
    "diagnosis": Group(
        "What judging runs costs",
        "make bench-diagnosis",
        "-diagnosis",
        ("diagnosis_asked", "diagnosis_arriving", "diagnosis_many"),
    ),
    "team": Group(
        "What a team costs a server",
        "make bench-team",
        "-team",
        ("team_access", "team_rejected", "team_offered", "team_held"),
    ),
    "page": Group(
        "What the page costs a reader, beside others",
        "make bench-page",
        "-page",
        ("page_arrival", "page_opening", "page_memory"),
    ),
}
EFFORTS = {
    "store": (store_effort.FULL, store_effort.QUICK),
    "delivery": (delivery_effort.FULL, delivery_effort.QUICK),
    "diagnosis": (diagnosis_effort.FULL, diagnosis_effort.QUICK),
    "team": (team_effort.FULL, team_effort.QUICK),
    "page": (page_effort.FULL, page_effort.QUICK),
}
"""The full and the quick effort of benchmarks, by the first word of their names."""
BESIDE = ("peers", "store", "delivery", "page")
"""How the names of benchmarks that also measure other tools begin."""


def run(names: tuple[str, ...], command: str, efforts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of the named benchmarks. ``efforts`` are by the first word of a name.

    Takes some minutes for all. Limits torch to one thread.
    """
    torch.set_num_threads(1)
    measured: dict[str, Any] = {"command": command, "machine": machine.describe()}
    if any(name.startswith(BESIDE) for name in names):
        measured["peers"] = peers.versions()
    for name in names:
        print(f"{name}: {BENCHMARKS[name].title}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as directory:
            much = [effort for word, effort in efforts.items() if name.startswith(word)]
            measured[name] = BENCHMARKS[name].module.measure(Path(directory), *much)
    return measured


def chosen(arguments: list[str]) -> Mapping[str, Group]:
    """The groups to report on: the named ones, and one that holds all named single benchmarks."""
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
        "--quick",
        action="store_true",
        help="a little of those that take long; writes no result",
    )
    parser.add_argument(
        "--sizes",
        nargs="+",
        type=int,
        metavar="N",
        help="updates of the runs whose figures are timed",
    )
    parser.add_argument(
        "--minutes", type=float, metavar="N", help="how long the page is left open; default 30"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - {*GROUPS, *BENCHMARKS}:
        parser.error(f"no benchmark is named {', '.join(sorted(unknown))}: there are {names}")
    return arguments


def main() -> None:
    arguments = _arguments()
    efforts: dict[str, Any] = {word: each[arguments.quick] for word, each in EFFORTS.items()}
    if arguments.sizes:
        efforts["store"] = efforts["store"]._replace(sizes=tuple(arguments.sizes))
    if arguments.minutes:
        efforts["page"] = efforts["page"]._replace(minutes=arguments.minutes)
    for name, group in chosen(arguments.names).items():
        measured = run(group.names, group.command, efforts)
        text = as_markdown(group.title, BENCHMARKS, measured)
        if name in GROUPS and not (arguments.quick or arguments.sizes):
            write(RESULTS / f"{machine.slug()}{group.suffix}", text, measured)
        print(text)


if __name__ == "__main__":
    main()
