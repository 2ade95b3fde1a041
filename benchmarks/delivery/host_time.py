"""The host time that monitoring adds to an update: while the sender sends, while its server is down, and offline.

Measured as in `host_cost`: the scaler beside the stock one and an empty subclass, with caches hot and swept. The three
situations take turns in one process. Offline, records go to the spool, and there is no sender. `p50_to_offline` is the
median over the rounds of the ratio of the added times, with its interval. p99 differences are over all rounds together.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import ampmon
from ampmon import sender
from ampmon.sender import DestinationStatus
from benchmarks import host_cost
from benchmarks.delivery import FULL, Effort
from benchmarks.paired import ratio, shown
from benchmarks.server import free_port, serving
from tests.waiting import wait_for


OFFLINE = "none, offline"
BARS_US = {"hot": (8.0, 50.0), "swept": (25.0, 60.0)}
Times: TypeAlias = dict[str, list[float]]
Situation: TypeAlias = Callable[[], AbstractContextManager[None]]
Place: TypeAlias = tuple[str, str, int]
"""The sender's situation, caches, and number of tensors."""


def measure(directory: Path, effort: Effort = FULL) -> list[dict[str, Any]]:
    """A row for each situation, caches and number of tensors. Takes some minutes. Fills ``directory``."""
    with serving(directory / "busy") as (url, _, _):
        nobody = f"http://127.0.0.1:{free_port()}"
        situations: dict[str, Situation] = {
            OFFLINE: partial(_offline, directory / "offline"),
            "busy": partial(_online, directory / "busy", url, _delivers),
            "server down": partial(_online, directory / "down", nobody, _has_trouble),
        }
        rounds = [
            _round(situations, effort) for _ in shown(range(effort.rounds), "host time of updates")
        ]
    return _rows(rounds)


def _round(situations: dict[str, Situation], effort: Effort) -> dict[Place, Times]:
    """Microseconds of each iteration, by scaler."""
    times: dict[Place, Times] = {}
    for name in random.sample(list(situations), len(situations)):
        with situations[name]():
            for caches, pairs in (("hot", effort.hot_pairs), ("swept", effort.swept_pairs)):
                for tensors in host_cost.TENSORS:
                    times[name, caches, tensors] = host_cost.compare(
                        tensors, pairs, swept=caches == "swept"
                    )
    return times


@contextmanager
def _offline(directory: Path) -> Iterator[None]:
    ampmon.init("benchmark", dir=directory, mode="offline")
    yield
    ampmon.finish()


@contextmanager
def _online(
    directory: Path, url: str, expected: Callable[[DestinationStatus], bool]
) -> Iterator[None]:
    """An online run. Raises AssertionError if the sender is not as expected before and after."""
    ampmon.init("benchmark", dir=directory, url=url, mode="online")
    _expect(directory, url, expected)
    yield
    _expect(directory, url, expected)
    ampmon.finish()


def _delivers(destination: DestinationStatus) -> bool:
    return destination.problem is None


def _has_trouble(destination: DestinationStatus) -> bool:
    return destination.problem is not None


def _expect(directory: Path, url: str, expected: Callable[[DestinationStatus], bool]) -> None:
    def holds() -> bool:
        said = sender.status(directory)
        return said is not None and any(
            each.url == url and expected(each) for each in said.destinations
        )

    wait_for(holds, f"a sender of which {expected.__name__} holds")


def _rows(rounds: list[dict[Place, Times]]) -> list[dict[str, Any]]:
    rows = []
    for place in sorted(rounds[0], key=lambda place: (place[1], place[2], place[0] != OFFLINE)):
        name, caches, tensors = place
        offline = (OFFLINE, caches, tensors)
        row = _summary([each[place] for each in rounds])
        against = ratio(
            [_added(each[place])[0] for each in rounds],
            [_added(each[offline])[0] for each in rounds],
        )
        p50, p99 = row["added_p50_us"], row["added_p99_us"]
        bar50, bar99 = BARS_US[caches]
        rows.append(
            {"caches": caches, "tensors": tensors, "sender": name, **row}
            | {"bar_p50_us": bar50, "bar_p99_us": bar99}
            | {"holds": "yes" if p50 <= bar50 and p99 <= bar99 else "no"}
            | {"p50_to_offline": round(against.value, 2)}
            | {"low": round(against.low, 2), "high": round(against.high, 2)}
            | {"added_p50_us_by_round": [round(_added(each[place])[0], 2) for each in rounds]}
        )
    return rows


def _summary(rounds: list[Times]) -> dict[str, float]:
    together = {name: [time for each in rounds for time in each[name]] for name in rounds[0]}
    summary = host_cost.summarise(together)
    kept = ("stock_p50_us", "stock_p99_us", "added_p50_us", "added_p99_us")
    named = {key.replace("monitored_", ""): value for key, value in summary.items()}
    return {key: named[key] for key in (*kept, "control_added_p99_us")}


def _added(times: Times) -> tuple[float, float]:
    stock, monitored = (host_cost.percentiles(times[name]) for name in ("stock", "monitored"))
    return monitored[0] - stock[0], monitored[1] - stock[1]
