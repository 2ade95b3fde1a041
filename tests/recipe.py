"""Runs a recipe of examples/ as it is, or with the stock scaler, and keeps everything it leaves behind.

`main` does so for recipes that run in several processes.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import itertools
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

import ampmon
from ampmon.client import current_run
from recording import Recording


EXAMPLES = Path(__file__).parents[1] / "examples"
UNCHANGED = "unchanged"
"""The suffix of a run whose recipe uses ampmon only through `ampmon.auto`."""


@dataclass
class Outcome:
    """Printed lines, weights, states and random state after a run, and a ledger for stock scalers.

    The ledger has for each update the scale before, whether each optimizer was skipped, and the scale after.
    """

    printed: str
    weights: list[torch.Tensor]
    optimizers: list[dict[str, Any]]
    scalers: list[dict[str, Any]]
    random: torch.Tensor
    ledger: list[tuple[float, tuple[bool, ...], float]]

    @property
    def losses(self) -> list[float]:
        words = self.printed.split()
        return [float(value) for word, value in itertools.pairwise(words) if word == "loss"]


LOOP = re.compile(r"^(\s*for (?:step|update|micro_step) in )range\((\w+)\):", re.MULTILINE)
CHOICE = 'device = "cuda" if torch.cuda.is_available() else "cpu"'


def run(name: str, *, stock: bool, place: str | None = None, steps: int | None = None) -> Outcome:
    """Run a recipe in this process, as it is or with torch's own scaler instead of ampmon's.

    It runs on ``place``, by default on the device that the recipe chooses, for at most ``steps`` steps.
    """
    source = (EXAMPLES / f"{name}.py").read_text()
    if steps is not None:
        source, loops = LOOP.subn(rf"\1range(min({steps}, \2)):", source)
        assert loops == 1
    if place is not None:
        assert CHOICE in source
        source = source.replace(CHOICE, f"device = {place!r}")
    ledger: list[tuple[float, tuple[bool, ...], float]] = []
    namespace: dict[str, Any] = {
        "__name__": f"recipe_{name}",
        "__file__": str(EXAMPLES / f"{name}.py"),
    }
    if stock:
        source = with_stock_scaler(source)
        namespace["keep_books"] = _bookkeeper(ledger)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, f"{name}.py", "exec"), namespace)
    left = {id(value): value for value in namespace.values()}.values()
    modules = [value for value in left if isinstance(value, torch.nn.Module)]
    bare = [value for value in left if isinstance(value, torch.nn.Parameter)]
    weights = [tensor for module in modules for tensor in [*module.parameters(), *module.buffers()]]
    return Outcome(
        printed=printed.getvalue(),
        weights=_local([*weights, *bare]),
        optimizers=_local([o.state_dict() for o in left if isinstance(o, torch.optim.Optimizer)]),
        scalers=_local([s.state_dict() for s in left if isinstance(s, torch.amp.GradScaler)]),
        random=torch.get_rng_state(),
        ledger=ledger,
    )


def with_stock_scaler(source: str) -> str:
    """The recipe without ampmon: its scaler becomes torch's with the same arguments; everything else stays."""
    tree = ast.parse(source)
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.Import) and node.names[0].name == "ampmon")
    ]
    return ast.unparse(ast.fix_missing_locations(_ToStock().visit(tree)))


class _ToStock(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node.func:
            case ast.Attribute(value=ast.Name(id="ampmon"), attr="watch"):
                scaler = node.args[0]
            case ast.Attribute(value=ast.Name(id="ampmon"), attr="GradScaler"):
                own = [word for word in node.keywords if word.arg not in {"model", "monitor"}]
                scaler = ast.Call(
                    ast.parse("torch.amp.GradScaler", mode="eval").body, node.args, own
                )
            case _:
                return node
        return ast.Call(ast.Name("keep_books", ast.Load()), [scaler], [])


def _bookkeeper(
    ledger: list[tuple[float, tuple[bool, ...], float]],
) -> Callable[[torch.amp.GradScaler], torch.amp.GradScaler]:
    def keep_books(scaler: torch.amp.GradScaler) -> torch.amp.GradScaler:
        update = scaler.update

        def updating() -> None:
            before = scaler.get_scale()
            states = scaler._per_optimizer_states.values()
            flags = [state["found_inf_per_device"].values() for state in states]
            skipped = tuple(any(flag.item() for flag in found) for found in flags)
            update()
            ledger.append((before, skipped, scaler.get_scale()))

        if scaler.is_enabled():
            scaler.update = updating  # type: ignore[method-assign]
        return scaler

    return keep_books


def _local(tree: Any) -> Any:
    """Copies of the tensors in a tree; of sharded ones, this rank's part."""

    def local(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return (leaf.to_local() if hasattr(leaf, "to_local") else leaf).detach().clone()
        return leaf

    return tree_map(local, tree)


def ledger(recorded: Recording) -> list[tuple[float, tuple[bool, ...], float]]:
    """The updates that ampmon recorded, in the form of the stock scaler's ledger."""
    updates = recorded.updates
    assert [update.ordinal for update in updates] == list(range(len(updates)))
    return [
        (update.scale, tuple(step.skipped for step in update.optimizers), update.scale_after)
        for update in updates
    ]


def is_sharded(name: str) -> bool:
    """Whether the ranks of a recipe hold parts of each parameter."""
    return name.startswith("fsdp")


def main() -> None:
    """Run multi-process recipes with the stock scaler, then with ampmon's, and sharded ones again with `ampmon.auto`.

    Arguments: the folder for the outcomes, the number of ranks, the maximum number of steps, a port for each process
    group, and the recipes' names. Each rank is a fork of this process, which has done the slow imports.
    """
    folder, ranks, steps, ports, *names = sys.argv[1:]
    for module in ("sklearn.datasets", "torch._dynamo", "torch.distributed.fsdp"):
        importlib.import_module(module)
    torch.set_num_threads(1)
    children = []
    for rank in range(int(ranks)):
        if not (child := os.fork()):
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
            _run_together(Path(folder), int(steps), ports.split(","), names)
            return
        children.append(child)
    failed = [child for child in children if os.waitpid(child, 0)[1]]
    assert not failed


def _run_together(folder: Path, steps: int, ports: list[str], names: list[str]) -> None:
    free = iter(ports)
    for name in names:
        outcomes = []
        for stock in (True, False):
            os.environ.update(MASTER_PORT=next(free), AMPMON_NAME=name)
            outcomes.append(run(name, stock=stock, steps=steps))
        current_run.finish()
        torch.save(outcomes, folder / f"{name}-{os.environ['RANK']}.pt")
    ampmon.auto()  # for good: every later stock scaler is watched
    for name in filter(is_sharded, names):
        os.environ.update(MASTER_PORT=next(free), AMPMON_NAME=f"{name} {UNCHANGED}")
        outcome = run(name, stock=True, steps=steps)
        torch.save(outcome, folder / f"{name}-{UNCHANGED}-{os.environ['RANK']}.pt")
        current_run.finish()
