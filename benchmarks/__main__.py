"""Run benchmarks. A whole group writes its results to benchmarks/results/MACHINE*.md and .json.gz."""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import (
    delivery,
    device_cost,
    diagnosis,
    gpu_kernels,
    host_cost,
    machine,
    name_cost,
    page,
    peers,
    peers_gradients,
    peers_host_cost,
    run_cost,
    start_up,
    store,
    team,
    whole_step,
)
from benchmarks.delivery import backlog, host_time, latency, tail
from benchmarks.diagnosis import arriving, asked, many
from benchmarks.page import arrival, memory, opening
from benchmarks.report import RESULTS, Benchmark, as_markdown, write
from benchmarks.store import against, alive, figures, listeners, rates, run_list, sizes, spikes
from benchmarks.team import access, held, offered, rejected


class Group(NamedTuple):
    """Benchmarks by name that share a report, and the command that runs them."""

    title: str
    command: str
    benchmarks: Mapping[str, Benchmark]


ALONE = "alone"
HOST_COST = Benchmark(
    "Time added on the host to an update that is not sampled, spool write included, sender busy",
    host_cost,
)
GROUPS = {
    ALONE: Group(
        "What monitoring costs",
        "make bench",
        {
            "host_cost": HOST_COST,
            "start_up": Benchmark("Starting a Python below `ampmon run`", start_up),
            "run_cost": Benchmark(
                "Host time of an update, `ampmon run` beside `ampmon.GradScaler`", run_cost
            ),
            "name_cost": Benchmark(
                "Naming the parameters of a script that gives no model, once", name_cost
            ),
        },
    ),
    "probe": Group(
        "What the probe costs, beside others",
        "make bench-probe",
        {
            "host_cost": HOST_COST,
            "device_cost": Benchmark(
                "Time added on the host to an update, on an emulated device and with DTensors",
                device_cost,
            ),
            "peers_gradients": Benchmark(
                "Looking at 124 million fp32 gradients in 148 tensors, CPU, beside others",
                peers_gradients,
            ),
            "peers_host_cost": Benchmark(
                "Time added on the host to an update, beside others that log four scalars",
                peers_host_cost,
            ),
            "whole_step": Benchmark("A whole training step with default settings", whole_step),
            "gpu_kernels": Benchmark("The kernels on a GPU", gpu_kernels),
        },
    ),
    "store": Group(
        "What the store costs, beside others",
        "make bench-store",
        {
            "store_figures": Benchmark("The server's time for a figure", figures),
            "store_spikes": Benchmark("Twenty spikes in a million updates", spikes),
            "store_runs": Benchmark("The list of ten thousand runs", run_list),
            "store_ingest": Benchmark("Updates taken over HTTP", rates),
            "store_against": Benchmark("Updates taken over HTTP, beside an older commit", against),
            "store_listeners": Benchmark("Five hundred listeners while ingesting", listeners),
            "store_alive": Benchmark("The server's memory with five hundred runs alive", alive),
            "store_bytes": Benchmark("Bytes stored", sizes),
        },
    ),
    "delivery": Group(
        "What the way to the database costs, and what a kill leaves of it, beside others",
        "make bench-delivery",
        {
            "delivery_host": Benchmark(
                "Host time of an update, whatever the sender does", host_time
            ),
            "delivery_latency": Benchmark("From the update to the database", latency),
            "delivery_backlog": Benchmark("A million updates while the server is away", backlog),
            "delivery_tail": Benchmark("What a kill leaves, beside others", tail),
        },
    ),
    "diagnosis": Group(
        "What judging runs costs",
        "make bench-diagnosis",
        {
            "diagnosis_asked": Benchmark("The server's time for a diagnosis", asked),
            "diagnosis_arriving": Benchmark("Judging runs as their records arrive", arriving),
            "diagnosis_many": Benchmark("Judging two hundred active runs", many),
        },
    ),
    "team": Group(
        "What a team costs a server",
        "make bench-team",
        {
            "team_access": Benchmark("Asking who sends, beside an open door", access),
            "team_rejected": Benchmark(
                "Ingest beside a thousand rejected tokens a second", rejected
            ),
            "team_offered": Benchmark("Five hundred small batches a second", offered),
            "team_held": Benchmark("Many pages and trainings for ten minutes", held),
        },
    ),
    "page": Group(
        "What the page costs a reader, beside others",
        "make bench-page",
        {
            "page_arrival": Benchmark("From the update to pixels, beside others", arrival),
            "page_opening": Benchmark("A run of ten million updates on the page", opening),
            "page_memory": Benchmark("The page left open at a run that trains", memory),
        },
    ),
}
BENCHMARKS = {name: each for group in GROUPS.values() for name, each in group.benchmarks.items()}
EFFORTS = {
    "store": (store.FULL, store.QUICK),
    "delivery": (delivery.FULL, delivery.QUICK),
    "diagnosis": (diagnosis.FULL, diagnosis.QUICK),
    "team": (team.FULL, team.QUICK),
    "page": (page.FULL, page.QUICK),
}
"""The full and the quick effort of benchmarks, by the first word of their names."""
BESIDE = ("peers", "store", "delivery", "page")
"""How the names of benchmarks that also measure other tools begin."""


def run(group: Group, efforts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a group. ``efforts`` are by the first word of a benchmark's name.

    Takes some minutes for all. Limits torch to one thread. The figures of a benchmark that fails are left out, and its
    traceback is printed.
    """
    torch.set_num_threads(1)
    measured: dict[str, Any] = {"command": group.command, "machine": machine.describe()}
    if any(name.startswith(BESIDE) for name in group.benchmarks):
        measured["peers"] = peers.versions()
    for name, benchmark in group.benchmarks.items():
        print(f"{name}: {benchmark.title}", file=sys.stderr, flush=True)
        much = [effort for word, effort in efforts.items() if name.startswith(word)]
        with tempfile.TemporaryDirectory() as directory:
            try:
                measured[name] = benchmark.module.measure(Path(directory), *much)
            except Exception:
                traceback.print_exc()
    return measured


def chosen(arguments: list[str]) -> Mapping[str, Group]:
    """The groups to report on: the named ones, and one that holds all named single benchmarks."""
    groups = {name: GROUPS[name] for name in arguments if name in GROUPS}
    if singles := {name: BENCHMARKS[name] for name in arguments if name not in GROUPS}:
        command = f"python -m benchmarks {' '.join(singles)}"
        groups["singles"] = Group("Some of the benchmarks", command, singles)
    return groups


def _arguments() -> argparse.Namespace:
    names = ", ".join((*GROUPS, *BENCHMARKS))
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", default=[ALONE], help=f"of {names}; default {ALONE}"
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
    failed: list[str] = []
    for name, group in chosen(arguments.names).items():
        measured = run(group, efforts)
        failed += group.benchmarks.keys() - measured.keys()
        text = as_markdown(group.title, group.benchmarks, measured)
        if name in GROUPS and not (arguments.quick or arguments.sizes):
            suffix = "" if name == ALONE else f"-{name}"
            write(RESULTS / f"{machine.slug()}{suffix}", text, measured)
        print(text)
    if failed:
        sys.exit(f"Failed, and left out of the figures: {', '.join(sorted(failed))}")


if __name__ == "__main__":
    main()
