"""The pictured runs: trained by the examples and the demo, and a few unusual ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from uuid import UUID

from ampmon import wire
from ampmon_server.settings import Settings
from batches import statistics
from benchmarks.store.filling import fill
from benchmarks.store.samples import Real
from benchmarks.store.track import track
from campaigns.extremes import make
from campaigns.pictures import hero
from posted import post
from serving import Server


EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = (
    *("typical", "clip_by_norm", "gradient_accumulation", "several_models", "fused_optimizers"),
    *("bf16_disabled", "ddp", "activation_gradients", "planted_overflow"),
)
DEMO = "GPT reads Python"
"""The name of the demo's run."""
DEMO_STEPS = 900
TRAINING_S = 600.0
LONG = 200_000
"""Updates of the long run."""

Runs = dict[str, UUID]


def stored(directory: Path) -> Runs:
    """The runs in a data directory, by name. If they are missing, train them, which blocks for minutes."""
    whole = directory / "whole"
    if not whole.exists():
        settings = Settings(data_directory=directory)
        directory.mkdir(parents=True, exist_ok=True)
        _make_long(settings)
    with Server(directory) as server:
        if not whole.exists():
            make(partial(post, server))
            for script in SCRIPTS:
                _train(server, EXAMPLES / f"{script}.py").wait(TRAINING_S)
            _train(server, "-m", hero.__name__).wait(TRAINING_S)
            demo(server, DEMO_STEPS).wait(TRAINING_S)
            whole.touch()
        return {run["name"]: UUID(run["run_id"]) for run in server.get("/runs?limit=1000")["runs"]}


def demo(server: Server, steps: int) -> subprocess.Popen[bytes]:
    """Start the demo's training, which reports to ``server``."""
    options = ["--no-browser", "--no-keep", "--steps", steps, "--growth-interval", 30]
    place = ["--port", server.port, "--data-dir", server.directory]
    return _train(server, "-m", "ampmon_server.cli", "demo", *options, *place)


@contextmanager
def training(server: Server) -> Iterator[None]:
    """Train the demo during the block, then interrupt it as with Ctrl-C."""
    process = demo(server, 10**6)
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def _train(server: Server, *arguments: object) -> subprocess.Popen[bytes]:
    """Start a training in its own process, on one thread, which reports to the server."""
    own = {"AMPMON_URL": server.url, "AMPMON_DIR": str(server.directory), "OMP_NUM_THREADS": "1"}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AMPMON_")} | own
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)], env=environment, stdout=subprocess.DEVNULL
    )


def _make_long(settings: Settings) -> None:
    """Store a long run of twenty parameters, with one update in a hundred sampled."""
    parameters = [wire.Parameter(f"blocks.{place}.weight", (80,), "float16") for place in range(20)]
    samples = [statistics(20, seed=seed) for seed in range(4)]
    fill(settings, [(track(LONG), Real(parameters, samples))])
