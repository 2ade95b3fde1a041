"""A whole training step with ampmon's default settings and with the stock scaler, in turns.

All kinds train their own copy of the same model on the same batches from the same seed, so they do the same arithmetic
and skip the same updates. A real server takes the records. They take turns in blocks of updates, because the monitor's
budget is a share of the time between its updates, and the others train between blocks. `ratio` is that of the total
times. `median_ratio` is that of single turns and misses the cost of rare samples. "stock again" shows the noise.
`host_ms` is the time until an update is enqueued, and `overhead` is the value of `scaler.monitor`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import ampmon
from ampmon_server.demo import text
from ampmon_server.demo.model import GPT, SMALL, ModelSize
from benchmarks import networks
from benchmarks.paired import NO_RATIO, ratio, ratio_of_totals, rounds_within, seconds, take_turns


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
    """A model, its data and device. ``kinds`` of training take turns in blocks of ``block`` updates for ``limit_s``."""

    title: str
    device: str
    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]
    kinds: tuple[str, ...] = tuple(KINDS)
    block: int = 16
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
        if kind in CONFIGS:
            self.scaler: torch.amp.GradScaler = ampmon.GradScaler(
                setting.device,
                name=f"{setting.title}, {kind}",
                model=self._model,
                monitor=CONFIGS[kind],
            )
        else:
            self.scaler = torch.amp.GradScaler(setting.device, enabled=self._autocast)

    def __call__(self) -> None:
        self.host_s.append(seconds(self._updates))
        if self._device == "cuda":
            torch.cuda.synchronize()

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


def measure(directory: Path) -> list[dict[str, Any]]:
    """A row for each kind of training in each setting. Takes some minutes. Fills ``directory``."""
    rows = in_turns(demo(), directory / "demo")
    for setting in on_gpu():
        if torch.cuda.is_available():
            rows += in_turns(setting, directory / setting.title.split()[0])
        else:
            rows += [_no_row(setting, kind, "there is no CUDA device") for kind in setting.kinds]
    return rows


def in_turns(setting: Setting, directory: Path) -> list[dict[str, Any]]:
    """A row for each kind of training in the setting."""
    from benchmarks.server import serving  # callers of `compare` need no server

    directory.mkdir()
    with serving(directory) as (url, _):
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
    trainings: dict[str, Training] = {}
    peaks: dict[str, float | None] = {}
    for kind in setting.kinds:
        trainings[kind], peaks[kind] = _started(setting, kind, batches)
    rounds = rounds_within(trainings, setting.limit_s)
    times = take_turns(trainings, rounds, f"training step of {setting.title}")
    return [_row(setting, kind, times, peaks[kind], trainings[kind]) for kind in setting.kinds]


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


def _row(
    setting: Setting,
    kind: str,
    times: dict[str, list[float]],
    peak: float | None,
    training: Training,
) -> dict[str, Any]:
    against = AGAINST[kind] if AGAINST[kind] in times else None
    monitor = getattr(training.scaler, "monitor", None)
    compared = NO_RATIO
    middle = None
    if against:
        bar = None if kind in (STOCK, SAMPLED) else BAR
        compared = ratio_of_totals(times[kind], times[against]).row(bar)
        middle = round(ratio(times[kind], times[against]).value, 4)
    return {
        "what": setting.title,
        "device": setting.device,
        "kind": kind,
        "step_ms": round(1000 * median(times[kind]) / setting.block, 2),
        "turns": len(times[kind]),
        "against": against,
        **compared,
        "median_ratio": middle,
        "host_ms": round(1000 * median(training.host_s) / setting.block, 3),
        "overhead": None if monitor is None else round(monitor.overhead, 4),
        "peak_mib": None if peak is None else round(peak),
        "note": "",
    }


def _no_row(setting: Setting, kind: str, why: str) -> dict[str, Any]:
    cells: dict[str, Any] = dict.fromkeys(("step_ms", "turns", "against"))
    return {
        "what": setting.title,
        "device": setting.device,
        "kind": kind,
        **cells,
        **NO_RATIO,
        "median_ratio": None,
        "host_ms": None,
        "overhead": None,
        "peak_mib": None,
        "note": f"not measured: {why}",
    }
