"""A whole training step with ampmon's default settings and with the stock scaler, in turns.

All kinds train their own copy of the same model on the same batches from the same seed, so they do the same arithmetic
and skip the same updates. A real server takes the records. They take turns in blocks of updates. The monitor's clock
stands still while others train, because its budget is a share of the time between its updates. The place of a model in
memory changes its speed by up to 3 % on a CPU, so several passes each begin with new models. `ratio` is that of the
total times. `median_ratio` is that of single turns and misses the cost of rare samples. "stock again" shows the noise.
`host_ms` is the time until an update is enqueued, and `overhead` is the value of `scaler.monitor`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor, nn

import ampmon
from ampmon_server.demo import text
from ampmon_server.demo.model import GPT, SMALL, ModelSize
from benchmarks import networks
from benchmarks.paired import NO_RATIO, ratio, ratio_of_totals, rounds_within, seconds, take_turns
from benchmarks.report import filled


BAR = 1.01
BATCHES = 64
STOCK, AGAIN, MONITORED, FULL = "fp16, stock", "fp16, stock again", "fp16, ampmon", "fp32"
UNSAMPLED, SAMPLED = "fp16, ampmon, no update sampled", "fp16, ampmon, every update sampled"
KINDS = {MONITORED: STOCK, AGAIN: STOCK, STOCK: FULL, FULL: None}
"""Each kind of training, and the kind that it is compared with."""
AGAINST = KINDS | {UNSAMPLED: STOCK, SAMPLED: STOCK}
CONFIGS = {
    MONITORED: None,
    UNSAMPLED: ampmon.Config(every=10**9),
    SAMPLED: ampmon.Config(every=1),
}


ADAMW = partial(torch.optim.AdamW, lr=1e-4)


@dataclass(frozen=True, slots=True)
class Setting:
    """A model, its data and device.

    ``kinds`` of training take turns in blocks of ``block`` updates, for ``limit_s`` over all ``passes``.
    """

    title: str
    device: str
    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]
    kinds: tuple[str, ...] = tuple(KINDS)
    block: int = 16
    passes: int = 1
    limit_s: float = 60.0
    optimizer: Callable[..., torch.optim.Optimizer] = ADAMW


def demo(size: ModelSize = SMALL) -> Setting:
    """The demo's GPT and text on the CPU, without fp32: fp16 has no fast kernel on most CPUs."""
    characters = text.load("cpu")
    return Setting(
        "the demo's GPT",
        "cpu",
        partial(GPT, len(text.ALPHABET), size),
        partial(characters.batch, size.batch, size.context),
        kinds=(STOCK, MONITORED, AGAIN),
        passes=10,
        limit_s=180.0,
    )


def on_gpu() -> list[Setting]:
    """GPT-2 and ResNet-50 on the first CUDA device."""
    return [
        Setting("GPT-2 124M, 8 x 1024 tokens", "cuda", networks.gpt2, networks.tokens),
        Setting("ResNet-50, 64 x 224 x 224", "cuda", networks.ResNet, networks.images),
    ]


class Training:
    """One kind of training, with its own model, optimizer and scaler. Calling it makes one block of updates."""

    def __init__(self, setting: Setting, kind: str, batches: Sequence[tuple[Tensor, ...]]) -> None:
        torch.manual_seed(0)
        self._device, self._block = setting.device, setting.block
        self._model = setting.model().to(setting.device)
        self._optimizer = setting.optimizer(self._model.parameters())
        self._autocast = kind != FULL
        self._batches = cycle(batches)
        self.host_s: list[float] = []
        """Seconds that the host took to enqueue each block, which may end later on a GPU."""
        self._own_ns, self._began_ns = 0, time.perf_counter_ns()
        if kind in CONFIGS:
            self.scaler: torch.amp.GradScaler
            self.scaler = monitored = ampmon.GradScaler(
                setting.device,
                name=f"{setting.title}, {kind}",
                model=self._model,
                monitor=CONFIGS[kind],
            )
            assert monitored.monitor is not None
            monitored.monitor._account.clock = self._clock
        else:
            self.scaler = torch.amp.GradScaler(setting.device, enabled=self._autocast)

    def __call__(self) -> None:
        self._began_ns = time.perf_counter_ns()
        self.host_s.append(seconds(self._updates))
        if self._device == "cuda":
            torch.cuda.synchronize()
        self._own_ns = self._clock()

    def _clock(self) -> int:
        """The nanoseconds that this training has taken, without the turns of the others."""
        return self._own_ns + time.perf_counter_ns() - self._began_ns

    def _updates(self) -> None:
        for _ in range(self._block):
            self._update()

    def _update(self) -> None:
        with torch.autocast(self._device, torch.float16, enabled=self._autocast):
            loss = self._model(*next(self._batches))
        self.scaler.scale(loss).backward()
        self.scaler.step(self._optimizer)
        self.scaler.update()
        self._optimizer.zero_grad()


@dataclass(slots=True)
class Measured:
    """What a kind of training took, in each pass."""

    passes_s: list[list[float]] = field(default_factory=list)
    host_s: list[float] = field(default_factory=list)
    overheads: list[float] = field(default_factory=list)
    peaks_mib: list[Any] = field(default_factory=list)

    def add(self, turns_s: list[float], training: Training) -> None:
        self.passes_s.append(turns_s)
        self.host_s += training.host_s
        if (monitor := getattr(training.scaler, "monitor", None)) is not None:
            self.overheads.append(monitor.overhead)

    def turns_s(self) -> list[float]:
        return [turn for turns in self.passes_s for turn in turns]

    def independent_s(self) -> list[float]:
        """The times to resample: those of the passes, since the turns of one share the place of their tensors."""
        return self.turns_s() if len(self.passes_s) == 1 else [sum(each) for each in self.passes_s]


def measure(directory: Path) -> list[dict[str, Any]]:
    """A row for each kind of training in each setting. Takes some minutes. Fills ``directory``."""
    rows = in_turns(demo(), directory / "demo")
    for setting in on_gpu():
        if torch.cuda.is_available():
            rows += in_turns(setting, directory / setting.title.split()[0])
        else:
            rows += [_no_row(setting, kind, "there is no CUDA device") for kind in setting.kinds]
    return filled(rows)


def in_turns(setting: Setting, directory: Path) -> list[dict[str, Any]]:
    """A row for each kind of training in the setting."""
    from benchmarks.server import serving  # callers of `compare` need no server

    directory.mkdir()
    with serving(directory) as (url, _, _):
        ampmon.init("benchmark", setting.title, dir=directory, url=url, mode="online")
        try:
            return compare(setting)
        except torch.OutOfMemoryError:
            return [_no_row(setting, kind, "too little memory") for kind in setting.kinds]
        finally:
            ampmon.finish()


def compare(setting: Setting) -> list[dict[str, Any]]:
    """The rows of a setting. The scalers report to the process's current run."""
    torch.manual_seed(0)
    batches = [tuple(part.to(setting.device) for part in setting.batch()) for _ in range(BATCHES)]
    measured = {kind: Measured() for kind in setting.kinds}
    for number in range(setting.passes):
        first = number % len(setting.kinds)
        trainings: dict[str, Training] = {}
        for kind in setting.kinds[first:] + setting.kinds[:first]:
            trainings[kind], peak = _started(setting, kind, batches)
            measured[kind].peaks_mib.append(peak)
        rounds = rounds_within(trainings, setting.limit_s / setting.passes)
        title = f"training step of {setting.title}, {number + 1} of {setting.passes}"
        for kind, times in take_turns(trainings, rounds, title).items():
            measured[kind].add(times, trainings[kind])
    return [_row(setting, kind, measured) for kind in setting.kinds]


def _started(
    setting: Setting, kind: str, batches: Sequence[tuple[Tensor, ...]]
) -> tuple[Training, float | None]:
    """A training after its first block, and its peak memory in MiB, or None if not on a GPU."""
    if setting.device != "cuda":
        training = Training(setting, kind, batches)
        training()
        return training, None
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    training = Training(setting, kind, batches)
    training()
    return training, (torch.cuda.max_memory_allocated() - before) / 2**20


def _row(setting: Setting, kind: str, measured: Mapping[str, Measured]) -> dict[str, Any]:
    this, against = measured[kind], AGAINST[kind] if AGAINST[kind] in measured else None
    compared = NO_RATIO
    middle = None
    if against:
        bar, other = None if kind in (STOCK, SAMPLED) else BAR, measured[against]
        compared = ratio_of_totals(this.independent_s(), other.independent_s()).row(bar)
        middle = round(ratio(this.turns_s(), other.turns_s()).value, 4)
    return {
        "what": setting.title,
        "device": setting.device,
        "kind": kind,
        "step_ms": round(1000 * median(this.turns_s()) / setting.block, 2),
        "turns": len(this.turns_s()),
        "against": against,
        **compared,
        "median_ratio": middle,
        "host_ms": round(1000 * median(this.host_s) / setting.block, 3),
        "overhead": round(fmean(this.overheads), 4) if this.overheads else None,
        "peak_mib": None if None in this.peaks_mib else round(max(this.peaks_mib)),
        "note": "",
    }


def _no_row(setting: Setting, kind: str, why: str) -> dict[str, Any]:
    note = f"not measured: {why}"
    return {"what": setting.title, "device": setting.device, "kind": kind, "note": note}
