"""The cost of inspecting the gradients of GPT-2 small on a CPU, with ampmon and with the tools people use for it.

Each tool runs as its users run it. Each round times the work with the tool and the same work without it. The difference
is the tool's cost, in multiples of the stock scaler's `unscale_` of the same gradients in the same round. Fast tools
have several turns in a round and count with their median.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from copy import deepcopy
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

import ampmon
from ampmon.config import Config
from ampmon.probe import host
from ampmon_server.demo.model import ModelSize
from benchmarks import given, networks, peers
from benchmarks.given import SCALER, GivenGradients, iteration
from benchmarks.paired import Work, ratio, take_turns
from benchmarks.report import filled


ROUNDS = 7
WINDOW = ModelSize(layers=12, heads=12, width=768, context=16, batch=1)
"""GPT-2 small over one short window: `DebugUnderflowOverflow` needs a forward pass, but not a long one."""


class Way(NamedTuple):
    """The work with a tool and without it, what the tool looks at, and how many elements it sees each time."""

    looks_at: str
    elements: int
    watched: Work
    unwatched: Work


@contextmanager
def _stock(gradients: Sequence[Tensor], _: Path) -> Iterator[Way]:
    first, second = (iteration(gradients, torch.amp.GradScaler(**SCALER)) for _ in range(2))
    yield Way("nothing: the same twice, which shows the noise", 0, first, second)


@contextmanager
def _ampmon(
    gradients: Sequence[Tensor], _: Path, sample: int | Literal["all"] = Config().sample
) -> Iterator[Way]:
    config = Config(every=1, sample=sample)
    scaler = ampmon.GradScaler(**SCALER, name=f"sample={sample}", monitor=config)
    looked = host.measure(gradients, range(len(gradients)), sample, np.random.default_rng(0)).looked
    yield Way(
        "gradients",
        int(looked.sum()),
        iteration(gradients, scaler),
        iteration(gradients, torch.amp.GradScaler(**SCALER)),
    )


@contextmanager
def _wandb(gradients: Sequence[Tensor], directory: Path) -> Iterator[Way]:
    import wandb

    watched, unwatched = GivenGradients(gradients), GivenGradients(gradients)
    with wandb.init(project="benchmark", dir=directory) as run:
        run.watch(watched, log="gradients", log_freq=1)

        def update(model: GivenGradients) -> None:
            model.backward()
            run.log({"loss": 0.0})

        yield Way(
            "gradients", _count(gradients), partial(update, watched), partial(update, unwatched)
        )


@contextmanager
def _tensorboard(gradients: Sequence[Tensor], directory: Path) -> Iterator[Way]:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(directory / "tensorboard") as writer:
        steps = count()

        def log() -> None:
            step = next(steps)
            for place, gradient in enumerate(gradients):
                writer.add_histogram(f"gradients/{place}", gradient, step)

        yield Way("gradients", _count(gradients), log, nothing)


@contextmanager
def _transformers(_: Sequence[Tensor], __: Path, window: ModelSize = WINDOW) -> Iterator[Way]:
    from transformers.debug_utils import DebugUnderflowOverflow

    unwatched, batch = networks.gpt2(window), networks.tokens(window)
    watched = deepcopy(unwatched)
    debug = DebugUnderflowOverflow(watched)
    looked: list[int] = []
    analyse = debug.analyse_variable

    def counting(variable: object, context: str) -> None:
        looked.append(variable.numel() if isinstance(variable, Tensor) else 0)
        analyse(variable, context)

    debug.analyse_variable = counting
    watched(*batch)
    del debug.analyse_variable  # restores the class's own
    yield Way(
        "weights and forward activations, no gradient",
        sum(looked),
        lambda: watched(*batch),
        lambda: unwatched(*batch),
    )


def nothing() -> None:
    """The work without a tool, if using the tool is all of the work."""


def _count(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


class Tool(NamedTuple):
    """How to start a tool on some gradients, the package it needs, its bar, and its turns in a round."""

    start: Callable[[Sequence[Tensor], Path], AbstractContextManager[Way]]
    peer: str | None = None
    bar: float | None = None
    turns: int = 1


CONTROL = "stock scaler, against itself"
TOOLS = {
    CONTROL: Tool(_stock, turns=7),
    "ampmon, default": Tool(_ampmon, bar=0.3, turns=7),
    'ampmon, sample="all"': Tool(partial(_ampmon, sample="all"), bar=3.5, turns=3),
    "wandb.watch": Tool(_wandb, "wandb"),
    "TensorBoard add_histogram": Tool(_tensorboard, "tensorboard"),
    "transformers DebugUnderflowOverflow": Tool(_transformers, "transformers"),
}


def measure(directory: Path) -> list[dict[str, Any]]:
    """A row for each tool. Takes about two minutes and 6 GB of memory."""
    return compare(given.gradients(), directory, TOOLS, ROUNDS)


def compare(
    gradients: Sequence[Tensor], directory: Path, tools: dict[str, Tool], rounds: int
) -> list[dict[str, Any]]:
    """A row for each tool on these gradients. If a tool cannot start, its row says why."""
    ways: dict[str, Way] = {}
    notes: dict[str, str | None] = {}
    with peers.quiet(directory), ExitStack() as stack:
        ampmon.init(dir=directory / "ampmon", mode="offline")
        stack.callback(ampmon.finish)
        for name, tool in tools.items():
            start = partial(_started, stack, tool, gradients, directory)
            way, notes[name] = peers.tried(tool.peer, start)
            if way is not None:
                ways[name] = way
        works = {name: way.watched for name, way in ways.items()}
        works |= {_without(name): way.unwatched for name, way in ways.items()}
        turns = {way: tool.turns for name, tool in tools.items() for way in (name, _without(name))}
        times = take_turns(works, rounds, "gradients, beside others", turns)
    return filled(
        [
            _row(name, tool, ways[name], times)
            if name in ways
            else {"what": name, "note": notes[name]}
            for name, tool in tools.items()
        ]
    )


def _started(stack: ExitStack, tool: Tool, gradients: Sequence[Tensor], directory: Path) -> Way:
    """Start a tool until the stack ends, and let it look once."""
    way = stack.enter_context(tool.start(gradients, directory))
    way.watched()
    return way


def _without(name: str) -> str:
    return f"without {name}"


def _row(name: str, tool: Tool, way: Way, times: dict[str, list[float]]) -> dict[str, Any]:
    pairs = zip(times[name], times[_without(name)], strict=True)
    added = [watched - unwatched for watched, unwatched in pairs]
    return {
        "what": name,
        "looks_at": way.looks_at,
        "elements": way.elements,
        "added_ms": round(1000 * median(added), 2),
        **ratio(added, times[CONTROL]).row(tool.bar),
        "note": "",
    }
