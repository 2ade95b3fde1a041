"""Each recipe in examples/ trains as with the stock scaler, and ampmon records exactly what happened."""

from __future__ import annotations

import ast
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import recipe
import scripts
from ampmon import wire
from older_torch import HAS_FSDP2
from recipe import EXAMPLES, UNCHANGED, Outcome, is_sharded, ledger
from recording import Recording, recording, recordings
from serving import free_port
from warm_python import WarmPython


ALONE = [
    "accumulation_with_clipping",
    "clip_by_norm",
    "cpu_autocast",
    "custom_autograd",
    "fused_optimizers",
    "gradient_penalty",
    "planted_overflow",
]
"""Together they take every path through the scaler."""
OTHERS = [
    "clip_by_value",
    "data_parallel",
    "gradient_accumulation",
    pytest.param(
        "legacy_spelling", marks=pytest.mark.filterwarnings("ignore:`torch.cpu.amp:FutureWarning")
    ),
    "several_models",
    "typical",
]
"""`make test-campaigns` trains these."""
STEPS = 34
"""Enough for an overflow and for the scale to grow. `make test-campaigns` trains each recipe to its end."""
TOGETHER = ["ddp", "fsdp2", "fsdp_sharded_scaler"]
RUNS_HERE = [name for name in TOGETHER if name != "fsdp2" or HAS_FSDP2]
ACTIVATIONS = "activation_gradients"
DISABLED = "bf16_disabled"
RANKS = 2


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: with several, the order of sums depends on the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def events(recorded: Recording) -> list[str]:
    """The kinds of all events except `spool`, which depends on how busy the disk is."""
    kinds = [record.kind for record in recorded.messages if isinstance(record, wire.Event)]
    return [kind for kind in kinds if kind != "spool"]


def assert_identical(stock: Outcome, ours: Outcome) -> None:
    assert stock.weights
    assert same(stock.weights, ours.weights)
    assert same(stock.optimizers, ours.optimizers)
    assert same(stock.scalers, ours.scalers)
    assert torch.equal(stock.random, ours.random)
    assert stock.printed == ours.printed


def same(left: Any, right: Any) -> bool:
    """Whether two trees of tensors and plain values are equal bit for bit."""
    if isinstance(left, torch.Tensor):
        alike = left.dtype == right.dtype and left.shape == right.shape
        return alike and left.numpy().tobytes() == right.numpy().tobytes()
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def assert_learned(outcome: Outcome) -> None:
    """Assert that the printed loss fell by at least a fifth."""
    assert len(outcome.losses) >= 5
    assert outcome.losses[-1] < 0.8 * outcome.losses[0]


def trained_alike(name: str, data_directory: Path, steps: int | None = STEPS) -> Recording:
    """Train a recipe with both scalers, compare the results, and return what was recorded."""
    stock = recipe.run(name, stock=True, steps=steps)
    ours = recipe.run(name, stock=False, steps=steps)

    assert_identical(stock, ours)
    if steps is None:
        assert_learned(ours)
    assert any(any(skipped) for _, skipped, _ in stock.ledger)
    recorded = recording(data_directory)
    assert ledger(recorded) == stock.ledger
    assert events(recorded) == ["init", "finish"]
    return recorded


@pytest.mark.parametrize("name", ALONE)
def test_a_recipe_trains_as_with_the_stock_scaler(name: str, data_directory: Path) -> None:
    """A recipe's final state is bit for bit the stock scaler's, and the spool has each update and skip once."""
    trained_alike(name, data_directory)


def test_the_recipe_of_activations_looks_into_every_layer(data_directory: Path) -> None:
    """The recipe trains the same. Every tenth update samples all modules, and the first has inf in the last module."""
    recorded = trained_alike(ACTIVATIONS, data_directory)
    sampled = [update.ordinal for update in recorded.updates if update.activations is not None]
    first, last = (recorded.activations(place) for place in (sampled[0], sampled[-1]))

    assert sampled == list(range(0, STEPS, 10))
    assert last.names == [str(index) for index in range(21)]
    assert recorded.updates[0].optimizers[0].skipped
    assert recorded.updates[0].loss == "finite"
    assert all(map(math.isfinite, first.forward))
    assert first.statistics.inf[20] > 0
    assert np.isfinite(last.statistics.amax).all()


@pytest.mark.filterwarnings("ignore::ampmon.AmpmonWarning")
def test_a_disabled_scaler_records_that_it_is_disabled(data_directory: Path) -> None:
    """The bfloat16 recipe trains as with the stock scaler, and its spool says that the scaler is disabled."""
    stock = recipe.run(DISABLED, stock=True, steps=STEPS)
    ours = recipe.run(DISABLED, stock=False, steps=STEPS)

    assert_identical(stock, ours)
    recorded = recording(data_directory)
    assert recorded.updates == []
    assert events(recorded) == ["init", "disabled", "finish"]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of two processes that ran the recipes of several processes."""
    return trained_together(tmp_path_factory.mktemp("together"), STEPS)


def trained_together(folder: Path, steps: int) -> Path:
    """Run these recipes in two processes, at most ``steps`` steps each, and return the folder."""
    ports = ",".join(str(free_port()) for _ in range(3 * len(RUNS_HERE)))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AMPMON_")},
        "AMPMON_DIR": str(folder),
        "AMPMON_MODE": "offline",
        "MASTER_ADDR": "127.0.0.1",
        "WORLD_SIZE": str(RANKS),
    }
    scripts.run(
        *(
            "-c",
            "import recipe; recipe.main()",
            str(folder),
            str(RANKS),
            str(steps),
            ports,
            *RUNS_HERE,
        ),
        cwd=Path(recipe.__file__).parent,
        env=environment,
    )
    return folder


def of_one_run(folder: Path, name: str) -> list[Recording]:
    """The recordings of a recipe's ranks: one attempt per rank, all in one run."""
    attempts = [recorded for recorded in recordings(folder) if recorded.attempt.name == name]
    assert [recorded.attempt.world_size for recorded in attempts] == [RANKS] * RANKS
    assert len({recorded.attempt.run_id for recorded in attempts}) == 1
    return attempts


@pytest.mark.parametrize("name", RUNS_HERE)
def test_a_recipe_of_several_processes(name: str, together: Path) -> None:
    """On every rank the results are equal bit for bit, and the recording has the stock scaler's skips."""
    for recorded in of_one_run(together, name):
        rank = recorded.attempt.rank
        stock, ours = torch.load(together / f"{name}-{rank}.pt", weights_only=False)
        assert_identical(stock, ours)
        assert any(any(skipped) for _, skipped, _ in stock.ledger)
        assert ledger(recorded) == stock.ledger
        assert recorded.events("lint") == []


@pytest.mark.parametrize("name", list(filter(is_sharded, RUNS_HERE)))
def test_a_sharded_recipe_needs_no_change(name: str, together: Path) -> None:
    """Watched stock scalers train a sharded recipe bit for bit the same, and both shards are recorded as one run."""
    for recorded in of_one_run(together, f"{name} {UNCHANGED}"):
        rank = recorded.attempt.rank
        stock, _ = torch.load(together / f"{name}-{rank}.pt", weights_only=False)
        ours = torch.load(together / f"{name}-{UNCHANGED}-{rank}.pt", weights_only=False)
        assert_identical(stock, ours)
        assert ledger(recorded) == stock.ledger == ours.ledger
        header = recorded.header()
        assert header.parameters[0].name.endswith("0.weight")  # other models live in the process
        assert header.layout == "sharded"
        assert [update for update in recorded.updates if update.gradients is not None]


@pytest.mark.rare
def test_a_recipe_of_several_processes_starts_them_itself(
    data_directory: Path, tmp_path: Path
) -> None:
    """`python examples/ddp.py` trains on two ranks and records one run."""
    python, printed = WarmPython(tmp_path), tmp_path / "printed"
    environment = {**os.environ, "PYTHON_EXEC": str(python.program)}
    with (
        printed.open("w") as output,
        scripts.Script(str(EXAMPLES / "ddp.py"), stdout=output, env=environment) as launcher,
    ):
        python.serve(RANKS)
        assert launcher.wait() == 0

    assert printed.read_text().startswith("step   0  loss 2.")
    attempts = [recorded.attempt for recorded in recordings(data_directory)]
    assert sorted(attempt.rank for attempt in attempts) == [0, 1]
    assert len({attempt.run_id for attempt in attempts}) == 1


def test_the_scalers_line_is_the_only_one_that_knows_ampmon() -> None:
    """In every recipe only the line that makes the scaler names ampmon, and none does with the stock scaler."""
    names = [path.stem for path in sorted(EXAMPLES.glob("*.py"))]
    tested = [
        *(getattr(name, "values", (name,))[0] for name in [*ALONE, *OTHERS]),
        *TOGETHER,
        ACTIVATIONS,
        DISABLED,
    ]
    assert names == sorted(tested)
    for name in names:
        source = (EXAMPLES / f"{name}.py").read_text()
        uses = {
            node.lineno
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Name) and node.id == "ampmon"
        }
        assert len(uses) == 1, name
        assert source.splitlines()[uses.pop() - 1].startswith("scaler = ampmon."), name
        left = list(ast.walk(ast.parse(recipe.with_stock_scaler(source))))
        assert not any(isinstance(node, ast.Name) and node.id == "ampmon" for node in left), name


def test_the_comparison_tells_a_difference() -> None:
    """A difference of one bit in a weight, or in the sign of a zero, is noticed."""
    weights = [torch.tensor([1.0, 0.0])]
    assert same(weights, [torch.tensor([1.0, 0.0])])
    assert not same(weights, [torch.tensor([1.0 + 2**-23, 0.0])])
    assert not same(weights, [torch.tensor([1.0, -0.0])])
