"""Plans a year's runs: how many, when, how long, and how they end. Pure numbers, the same for the same seed.

Lengths are lognormal: half of the runs are short, a few have most of the updates. People start them in working hours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import numpy as np
import numpy.typing as npt


Fate = Literal["finished", "crashed", "killed", "resumed"]
"""A ``crashed`` run reports its crash, a ``killed`` one goes silent, and a ``resumed`` one was killed and continued."""

Health = Literal["well", "restless", "diverged"]
"""A ``restless`` run skips often because its scale grows after few updates; a ``diverged`` one ends in a dead scale."""

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US
DAYS = 365
START = 1_790_000_000 * SECOND_US // DAY_US * DAY_US
"""The year's first midnight, in microseconds since the epoch."""

PEOPLE, RUNS, UPDATES = 30, 20_000, 100_000_000
LONGEST = 1_500_000
_SHORTEST, _SPREAD = 20, 2.0
_RANKS, _RANKS_CHANCE = (1, 2, 4, 8), (0.85, 0.06, 0.06, 0.03)
_FATES: tuple[tuple[Fate, float], ...] = (
    ("finished", 0.68),
    ("crashed", 0.14),
    ("killed", 0.06),
    ("resumed", 0.12),
)
_HEALTH: tuple[tuple[Health, float], ...] = (
    ("well", 0.93),
    ("restless", 0.04),
    ("diverged", 0.03),
)
_PROJECTS = (
    *("asr", "detection", "diffusion", "distill", "gpt-2", "moe"),
    *("nmt", "ranking", "retrieval", "rl", "vision", "vit"),
)
_MODELS = ("base", "big", "large", "nano", "small", "tiny", "wide", "xl")
_TRIES = ("adamw", "bs512", "clip1", "fp16", "lr1e-3", "lr3e-4", "no-warmup", "seed2", "sgd")
_TAGS = ("ablation", "baseline", "paper", "sweep", "trial", "wip")


@dataclass(frozen=True, slots=True)
class Planned:
    """One run. Times are in microseconds. ``updates`` are its steps, each sent by all of its ``ranks``."""

    number: int
    run_id: UUID
    person: int
    project: str
    name: str
    tags: tuple[str, ...]
    started: int
    updates: int
    period: int
    ranks: int
    fate: Fate
    health: Health
    broken: int
    """The number of updates after which a resumed run was killed."""
    resumed: int
    """The step from which a resumed run continued."""

    @property
    def sent(self) -> int:
        """Updates that its processes send, over all ranks and attempts."""
        return self.ranks * sum(stop - first for first, stop in self.attempts)

    @property
    def attempts(self) -> tuple[tuple[int, int], ...]:
        """Each attempt's first step, and the step after its last."""
        if self.fate != "resumed":
            return ((0, self.updates),)
        return (0, self.broken), (self.resumed, self.updates)


def population(scale: float, seed: int) -> list[Planned]:
    """A year's runs in order of their start: the share ``scale`` of all runs and updates."""
    count = max(round(RUNS * scale), 1)
    chance = np.random.default_rng(seed)
    ranks = chance.choice(_RANKS, count, p=_RANKS_CHANCE)
    lengths = _lengths(chance, ranks, UPDATES * scale)
    started = np.sort(_starts(chance, count))
    # A run that starts late gets a period short enough to end within the year.
    room = START + DAYS * DAY_US - 3600 * SECOND_US - started
    periods = np.clip(chance.lognormal(np.log(0.25), 0.7, count), 0.03, 3.0) * SECOND_US
    activity = 1 / np.arange(1, PEOPLE + 1) ** 0.7
    columns = {
        "person": chance.choice(PEOPLE, count, p=activity / activity.sum()),
        "started": started,
        "updates": lengths,
        "period": np.minimum(periods, np.maximum(room / lengths, 1000.0)).astype(np.int64),
        "ranks": ranks,
        "fate": _dealt(chance, _FATES, count),
        "health": _dealt(chance, _HEALTH, count),
    }
    rows = zip(*(each.tolist() for each in columns.values()), strict=True)
    return [
        _planned(number, dict(zip(columns, row, strict=True)), seed)
        for number, row in enumerate(rows)
    ]


def _planned(number: int, drawn: dict[str, Any], seed: int) -> Planned:
    """A run from its drawn values, and from further ones that only its number and the seed determine."""
    chance = np.random.default_rng([seed, number])
    # Each person works on two projects, and some projects have many people.
    project = _PROJECTS[(drawn["person"] + int(chance.integers(2)) * 5) % len(_PROJECTS)]
    model, tried = chance.choice(_MODELS), chance.choice(_TRIES)
    broken = max(int(drawn["updates"] * chance.uniform(0.3, 0.8)), 1)
    return Planned(
        **drawn,
        number=number,
        run_id=_uuid7(drawn["started"], chance),
        project=project,
        name=f"{project}-{model}-{tried}-{number:05d}",
        tags=tuple(sorted({str(tag) for tag in chance.choice(_TAGS, chance.integers(3))})),
        broken=broken,
        resumed=max(broken - int(chance.integers(500)), 0),
    )


def attempt_id(run: Planned, attempt: int, rank: int) -> UUID:
    """The id of one process start."""
    return _uuid7(run.started + attempt, np.random.default_rng([run.number, attempt, rank]))


def _lengths(
    chance: np.random.Generator, ranks: npt.NDArray[np.int64], total: float
) -> npt.NDArray[np.int64]:
    """The steps of each run, which make about ``total`` updates over all ranks."""
    drawn = chance.lognormal(0.0, _SPREAD, len(ranks))
    for _ in range(20):
        drawn = np.clip(drawn * total / (drawn * ranks).sum(), _SHORTEST, LONGEST)
    return drawn.astype(np.int64)


def _starts(chance: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
    """Start times within the year: mostly on working days, and in the daytime."""
    days = np.arange(DAYS - 1)
    weight = np.where(days % 7 < 5, 1.0, 0.3)
    day = chance.choice(days, count, p=weight / weight.sum())
    hour = np.clip(chance.normal(14, 3.5, count), 0, 23.9)
    moment: npt.NDArray[np.int64] = START + day * DAY_US + (hour * 3600 * SECOND_US).astype(int)
    return moment


def _dealt(
    chance: np.random.Generator, of: tuple[tuple[str, float], ...], count: int
) -> npt.NDArray[np.str_]:
    names, weights = zip(*of, strict=True)
    return chance.choice(names, count, p=weights)


def _uuid7(time_us: int, chance: np.random.Generator) -> UUID:
    high, low = (int(each) for each in chance.integers(0, [1 << 12, 1 << 62]))
    return UUID(int=time_us // 1000 << 80 | 7 << 76 | high << 64 | 2 << 62 | low)
