"""Runs the demo from start to end: a server, a training that reports to it, and the terminal output."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import ampmon
from ampmon.config import data_directory
from ampmon.errors import ConfigurationError
from ampmon_server.client.invitation import invitation
from ampmon_server.demo import Interrupt, service, text
from ampmon_server.demo.service import DemoServer
from ampmon_server.demo.story import Narrator
from ampmon_server.demo.train import Plan, train
from ampmon_server.model.words import plural, two_to


STEPS = {"cpu": 4000, "cuda": 20_000}
OF_OTHER_RUNS = ("AMPMON_TOKEN", "AMPMON_RUN_ID")
"""Variables that the demo ignores: it reports a run of its own to the server of its data directory."""
DESCRIPTION = (
    "A small GPT learns Python from the source of the standard library, in fp16. It starts at scale 1, where much of "
    "the gradient is subnormal: as the scale doubles, underflow disappears. Then something overflows: a step is "
    "skipped, the scale backs off, and the ceiling is found."
)


def run(arguments: argparse.Namespace, interrupt: Interrupt) -> int:
    """Run the demo. Return 0, also after an interrupt. Raises AmpmonError and OSError."""
    for name in OF_OTHER_RUNS:
        os.environ.pop(name, None)
    console = Console(highlight=False)
    directory = Path(arguments.data_dir or data_directory()).expanduser().absolute()
    try:
        server = service.find_or_start(directory, arguments.port or None, interrupt.is_set)
        with ExitStack() as stack:
            stack.callback(server.stop)
            if interrupt.is_set():
                return 0
            if not arguments.no_browser and has_display():
                stack.enter_context(invitation(server.login_link(), directory))()
            console.print(
                f"The page: {server.login_link()}  (opens once; `ampmon token link` makes another)",
                soft_wrap=True,
            )
            _train(server, directory, _plan(arguments), interrupt, console)
            if server.own and arguments.keep:
                _keep(server, interrupt, console)
    except KeyboardInterrupt:
        pass
    return 0


def _keep(server: DemoServer, interrupt: Interrupt, console: Console) -> None:
    """Wait for an interrupt while the server serves the page. Raises ConfigurationError if it ends."""
    if not interrupt.is_set():
        console.print(f"The page stays at {server.url} until Ctrl-C.")
    while not interrupt.wait(1.0):
        if not server.running():
            raise ConfigurationError("the server has ended")


def _plan(arguments: argparse.Namespace) -> Plan:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Plan(
        device=device,
        steps=arguments.steps or STEPS[device],
        seed=arguments.seed,
        growth_interval=arguments.growth_interval,
    )


def _train(
    server: DemoServer, directory: Path, plan: Plan, interrupt: Interrupt, console: Console
) -> None:
    if plan.device == "cpu":
        torch.set_num_threads(1)  # leaves the other cores to the server and the browser
    data = text.load(plan.device)
    place = "the GPU" if plan.device == "cuda" else "the CPU"
    console.print(
        f"Training from scale 1, in fp16 on {place}, on {plural(len(data.characters), 'character')} of Python's "
        "standard library.",
        soft_wrap=True,
    )
    run_id = ampmon.init(
        "demo",
        "GPT reads Python",
        {"description": DESCRIPTION, **plan.config()},
        url=server.url,
        dir=directory,
        mode="online",
        tags=("demo",),
    )
    narrator = Narrator(server, str(run_id), partial(console.print, soft_wrap=True))
    with _progress_bar(console) as bar:
        task = bar.add_task("training", total=plan.steps, loss=0.0, scale="2⁰", skips=0)
        for now in train(plan, data, interrupt.is_set):
            scale = two_to(round(math.log2(now.scale))) if now.scale else "0"
            bar.update(task, completed=now.updates)
            bar.update(task, loss=now.loss, scale=scale, skips=now.skips)
            narrator.look()
    ampmon.finish()
    narrator.look(now=True)
    console.print(
        f"{now.updates} updates, {now.skips} of them skipped; the loss is {now.loss:.2f} nats per character."
    )


def _progress_bar(console: Console) -> Progress:
    return Progress(
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.2f}  scale {task.fields[scale]}"),
        TextColumn("{task.fields[skips]} skipped"),
        TimeRemainingColumn(),
        console=console,
    )


def has_display(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a graphical browser can open. A text browser would take over the terminal."""
    if sys.platform in {"darwin", "win32"}:
        return True
    return bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))
