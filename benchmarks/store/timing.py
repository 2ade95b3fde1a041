"""Times requests as a page makes them: over loopback, on one kept-alive connection, without a cache."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np
import urllib3

from benchmarks.paired import shown


Key = TypeVar("Key", bound=Hashable)


class Times(NamedTuple):
    """Percentiles of the response time in milliseconds, and the number of requests."""

    p50: float
    p95: float
    requests: int

    @classmethod
    def of(cls, seconds: list[float]) -> Times:
        p50, p95 = 1000 * np.percentile(seconds, (50, 95))
        return cls(float(p50), float(p95), len(seconds))


class Client:
    """One connection to a server. Methods return the body, and raise AssertionError for any status but 200."""

    def __init__(self, token: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        self._http = urllib3.PoolManager(retries=False, maxsize=1, timeout=300.0)
        self._headers = dict(headers or {})
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def get(self, url: str) -> bytes:
        answer = self._http.request("GET", url, headers=self._headers)
        assert answer.status == 200, (url, answer.data[:500])
        return answer.data

    def post(self, url: str, json: object) -> bytes:
        answer = self._http.request("POST", url, json=json, headers=self._headers)
        assert answer.status == 200, (url, answer.data[:500])
        return answer.data


def in_turns(
    asks: Mapping[Key, Callable[[], object]],
    title: str,
    *,
    limit_s: float,
    least: int = 3,
    most: int = 40,
) -> dict[Key, Times]:
    """Time requests in rounds of random order, for ``limit_s`` in total, but ``least`` to ``most`` rounds.

    A first round is not counted, because it finds nothing in memory.
    """
    taken: dict[Key, list[float]] = {key: [] for key in asks}
    began = time.perf_counter()
    order = list(asks)
    for number in shown(range(most + 1), title):
        elapsed = time.perf_counter() - began
        if number > least and elapsed * (number + 1) / number > limit_s:
            break
        random.shuffle(order)
        for key in order:
            started = time.perf_counter()
            asks[key]()
            if number:
                taken[key].append(time.perf_counter() - started)
    return {key: Times.of(seconds) for key, seconds in taken.items()}
