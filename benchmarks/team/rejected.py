"""Ingest during a flood of a thousand requests a second with invalid tokens.

Ten clients send batches of a thousand updates to a real server on SQLite. Another process floods over a hundred
kept-alive connections. Each round measures, in random order, ingest alone, with the flood aimed at a tiny server
elsewhere on the machine, and with each kind of flood. All share the machine's cores. `kept` is the ingest rate relative
to that with the flood aimed elsewhere: the cost of rejecting, not of sending. The bar applies to it. `kept_of_all` is
relative to ingest alone. A server delays its responses to many unknown clients. `refused_per_s` counts its responses on
these connections, each of which sends its next request after a response. A token is *strange* if it does not look like
one of the server's, *made up* if it is well-formed and differs each time, so it cannot be cached, and *revoked* if it
was valid before.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.paired import Ratio, ratio, shown
from benchmarks.processes import working
from benchmarks.server import serving
from benchmarks.store import load
from benchmarks.team import FULL, Effort, tokens
from benchmarks.team.flooding import NEW


BAR = 0.8
CLIENTS, SIZE = 10, 1000
ALONE, ELSEWHERE = "alone", "elsewhere"
_UPDATES_PER_S = 60_000
"""More than a server ingests, so the time limit ends a turn."""


def measure(directory: Path, effort: Effort = FULL) -> list[dict[str, Any]]:
    """A row for each kind of token. Takes some minutes. Fills ``directory``."""
    with (
        serving(directory) as (url, token, _),
        working("benchmarks.team.elsewhere") as elsewhere,
    ):
        revoked = tokens.make(url, token, "gone")
        tokens.revoke(url, token, "gone")
        floods = {
            ELSEWHERE: (elsewhere.ready, NEW),
            "strange": (url, "x" * 43),
            "made up": (url, NEW),
            "revoked": (url, revoked),
        }
        turns = _Turns(url, token, floods, effort)
        for _ in shown(range(effort.flood_rounds), "rejected"):
            turns.round()
        kinds = [kind for kind in floods if kind != ELSEWHERE]
        return [_row(kind, turns, effort) for kind in kinds]


class _Turns:
    """The ingest rates beside each flood and alone, and what the floods counted."""

    def __init__(
        self, url: str, token: str, floods: Mapping[str, tuple[str, str]], effort: Effort
    ) -> None:
        self._url, self._token, self._floods, self._effort = url, token, floods, effort
        self.rates: dict[str, list[float]] = {way: [] for way in (ALONE, *floods)}
        self.counted: dict[str, list[dict[str, float]]] = {kind: [] for kind in floods}

    def round(self) -> None:
        for way in random.sample(list(self.rates), len(self.rates)):
            self.rates[way].append(self._rate() if way == ALONE else self._beside(way))

    def _beside(self, kind: str) -> float:
        url, token = self._floods[kind]
        per_s = self._effort.flood_per_s
        with working("benchmarks.team.flooding", url, token, per_s) as flood:
            rate = self._rate()
        self.counted[kind].append(json.loads(flood.counted))
        return rate

    def _rate(self) -> float:
        effort = self._effort
        batches = max(int(_UPDATES_PER_S * effort.ingest_s) // CLIENTS // SIZE, 1)
        work = [load.plain(batches, SIZE) for _ in range(CLIENTS)]
        return load.send([self._url], self._token, work, effort.ingest_s).rate


def _row(kind: str, turns: _Turns, effort: Effort) -> dict[str, Any]:
    rates, counted = turns.rates, turns.counted[kind]
    kept = ratio(rates[kind], rates[ELSEWHERE])
    of_all = ratio(rates[kind], rates[ALONE])
    return {
        "token": kind,
        "asked_per_s": effort.flood_per_s,
        "refused_per_s": round(median(each["refused"] / each["seconds"] for each in counted)),
        "otherwise_answered": round(sum(each["others"] + each["failed"] for each in counted)),
        "asker_cores": round(median(each["cpu_s"] / each["seconds"] for each in counted), 2),
        "alone_per_s": round(median(rates[ALONE])),
        "elsewhere_per_s": round(median(rates[ELSEWHERE])),
        "beside_per_s": round(median(rates[kind])),
        "kept": round(kept.value, 3),
        "low": round(kept.low, 3),
        "high": round(kept.high, 3),
        "bar": BAR,
        "holds": _verdict(kept),
        "kept_of_all": round(of_all.value, 3),
    }


def _verdict(kept: Ratio) -> str:
    if kept.low >= BAR:
        return "yes"
    return "no" if kept.high < BAR else "not told apart"
