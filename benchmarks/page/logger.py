"""A process that logs a value at a fixed pace with another tool, and prints when each call returned."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import peers


@contextmanager
def _tensorboard(folder: Path) -> Iterator[Callable[[int], object]]:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(folder / "run", flush_secs=1, max_queue=1) as writer:
        yield lambda step: writer.add_scalar("loss", 1 / (step + 1), step)


@contextmanager
def _trackio(_: Path) -> Iterator[Callable[[int], object]]:
    import trackio

    trackio.init(project="benchmark")
    yield lambda step: trackio.log({"loss": 1 / (step + 1)}, step=step)
    trackio.finish()


TOOLS = {"tensorboard": _tensorboard, "trackio": _trackio}


def main(tool: str, directory: Path, calls: int, per_second: float) -> None:
    returned = []
    said, sys.stdout = sys.stdout, sys.stderr  # some tools print messages
    with peers.quiet(directory), TOOLS[tool](directory) as log:
        print("ready", file=said, flush=True)
        sys.stdin.readline()
        began = time.perf_counter()
        for call in range(calls):
            time.sleep(max(0.0, began + call / per_second - time.perf_counter()))
            log(call)
            returned.append(time.perf_counter_ns())
        print(json.dumps(returned), file=said, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
