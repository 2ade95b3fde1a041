"""A run small enough to check every number of its charts by hand, and its charts as golden files.

``python tests/known_run.py`` rewrites `tests/figures/golden/`: read the diff before you keep it.

24 updates, 50 ms apart, of two ranks. The scale is 2^15, 2^16 from step 6 on, and 2^15 again after step 11, which is
skipped for 3 inf in head.weight. Step 13 took 200 ms. The record of step 18 is lost, and rank 1 has half the scale at
step 20. Each sample at `SAMPLED` has 880 elements on fp16's grid. At 2^15, 88 are zero (10 %), 44 subnormal (5 %)
and 748 normal. At 2^16, 44 of the zeros come back: 44 (5 %), 66 (7.5 %) and 770. The gradient's norm is always 13 / 32.
"""

from __future__ import annotations

import json
import re
import tempfile
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import numpy as np

from ampmon import wire
from ampmon.numerics.histogram import BINS, EXPONENT_MIN, Statistics
from ampmon_server.charts import FIGURES, View
from ampmon_server.charts.compared import COMPARED
from ampmon_server.queries import comparing, drawing
from ampmon_server.queries.sources import ChartRequest
from ampmon_server.settings import Settings
from ampmon_server.store import Store
from batches import START, Trainer, counted


GOLDEN = Path(__file__).parent / "figures" / "golden"
RUN, OTHER = UUID(int=1), UUID(int=2)
STEPS = 24
SAMPLED = (0, 4, 6, 8, 11, 12, 16, 20)
GROWTH = {"event": "grow", "scale_after": 2.0**16}
GROWN, SKIPPED, SLOW, LOST, APART = 5, 11, 13, 18, 20
PARAMETERS = (
    wire.Parameter("embedding.weight", (100, 8), "float32"),
    wire.Parameter("head.weight", (8, 10), "float32"),
    wire.Parameter("norm.weight", (20,), "float32"),
)
MODULES = (wire.Module("embedding", "Embedding"), wire.Module("head", "Linear"))

ASKED = {
    "parameter": ChartRequest(View(parameter="embedding.weight")),
    "histogram": ChartRequest(View(parameter="embedding.weight")),
}
"""The query of each chart that needs one."""


def _rows(*rows: tuple[int, int, int, float, float, dict[int, int]]) -> Statistics:
    """Each row has a parameter's zeros, inf, elements off the grid, amax, sum of squares and counts by exponent."""
    zeros, inf, off, amax, squares, counts = zip(*rows, strict=True)
    histogram = np.zeros((len(rows), BINS), np.int64)
    for row, held in enumerate(counts):
        for exponent, count in held.items():
            histogram[row, exponent - EXPONENT_MIN] = count
    return counted(histogram, zeros=zeros, inf=inf, off_grid=off, amax=amax, sum_squares=squares)


def gradient(step: int) -> Statistics:
    """The gradient of every sample: the same one, at the scale of its step."""
    if GROWN < step <= SKIPPED:
        embedding = (36, 0, 0, 192.0, 9.0 * 2**22, {-24: 44, -19: 22, -14: 22, 7: 676})
        head = (8, 0, 0, 2.0**13, 2.0**26, {0: 71, 13: 1})
        if step == SKIPPED:
            head = (8, 3, 0, np.inf, np.inf, {0: 69})
        return _rows(embedding, head, (0, 0, 10, 6144.0, 9.0 * 2**26, {12: 20}))
    return _rows(
        (80, 0, 0, 96.0, 9.0 * 2**20, {-20: 22, -15: 22, 6: 676}),
        (8, 0, 0, 2.0**12, 2.0**24, {-1: 71, 12: 1}),
        (0, 0, 10, 3072.0, 9.0 * 2**24, {11: 20}),
    )


def _activations() -> wire.Activations:
    """An embedding with a half subnormal gradient, and a head with an output of 2^12."""
    at = _rows((0, 0, 0, 1.0, 1.0, {-20: 50, -1: 50}), (10, 0, 0, 16.0, 256.0, {3: 30}))
    return wire.Activations(
        gradients=at.to_wire(),
        elements=np.array([100, 40], "<i8").tobytes(),
        forward=np.array([2.0, 4096.0]).tobytes(),
    )


def _update(trainer: Trainer, step: int) -> wire.Update:
    """A rank's update at a step. Only rank 0 samples, as with replicated gradients."""
    high = GROWN < step <= SKIPPED
    scale = 2.0 ** (16 if high else 15)
    if trainer.rank and step == APART:
        scale /= 2
    return trainer.update(
        skipped=step == SKIPPED,
        scale=scale,
        duration=200_000.0 if step == SLOW else 50_000.0,
        memory_peak=2 * 10**9 if step in SAMPLED else None,
        gradients=gradient(step).to_wire() if step in SAMPLED and not trainer.rank else None,
        activations=_activations() if step == APART and not trainer.rank else None,
        **(GROWTH if step == GROWN else {}),
    )


def _logged(trainer: Trainer, step: int) -> wire.Scalars:
    """The loss falls from 2 by 1/16 per step, and is inf at the skipped update."""
    made = trainer.scalars({"loss": 2 - step / 16})
    if step == SKIPPED:
        made = msgspec.structs.replace(made, values={"loss": None}, kinds={"loss": "inf"})
    return msgspec.structs.replace(made, time=START + 50_000 * step)


def _send(store: Store, trainer: Trainer, steps: int) -> None:
    stream = msgspec.structs.replace(trainer.stream, parameters=PARAMETERS, modules=MODULES)
    records: list[wire.Record] = []
    for step in range(steps):
        update = _update(trainer, step)
        logged = [] if trainer.rank else [_logged(trainer, step)]
        records += [] if step == LOST else [update, *logged]
    store.ingest(trainer.batch(records, headers=(trainer.attempt, stream)))


def send(store: Store) -> None:
    """Store the run, and its first half as another run."""
    for rank in (0, 1):
        _send(store, Trainer(run_id=RUN, rank=rank, world_size=2, name="known"), STEPS)
    _send(store, Trainer(run_id=OTHER, name="half"), STEPS // 2)


def draw(store: Store, name: str) -> Mapping[str, Any]:
    """A chart of the run, or of both runs if its name begins with ``compared-``."""
    together = name.removeprefix("compared-")
    if together != name:
        return comparing.draw(store, (RUN, OTHER), together, View())
    return drawing.draw(store, RUN, name, ASKED.get(name, ChartRequest()))


def plain(part: Any) -> Any:
    """A chart with its arrays as lists: numbers to 9 digits, NaN as null."""
    if isinstance(part, Mapping):
        if "bdata" in part:
            flat = np.frombuffer(b64decode(part["bdata"]), "<" + part["dtype"])
            shape = [int(n) for n in part.get("shape", str(flat.size)).split(",")]
            return {part["dtype"]: plain(flat.reshape(shape).tolist())}
        return {key: plain(value) for key, value in part.items()}
    if isinstance(part, list | tuple):
        return [plain(each) for each in part]
    if isinstance(part, float):
        return None if np.isnan(part) else float(f"{part:.9g}")
    return part


def written(figure: Mapping[str, Any]) -> str:
    """The chart as JSON with one line per key and per list of numbers."""
    text = json.dumps(plain(figure), indent=1, ensure_ascii=False, sort_keys=True)
    flat = re.compile(r"\[\s+((?:[-+\w.]+,\s+)*[-+\w.]+)\s+\]")
    return flat.sub(lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        store = Store.open(Settings(data_directory=Path(directory), judging=False))
        send(store)
        for name in (*FIGURES, *(f"compared-{name}" for name in COMPARED)):
            (GOLDEN / f"{name}.json").write_text(written(draw(store, name)), encoding="utf-8")
        store.close()


if __name__ == "__main__":
    main()
