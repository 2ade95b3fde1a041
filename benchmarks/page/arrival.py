"""The time from the return of `scaler.update()` to the frame that shows it, on one machine, in a foreground window.

One process trains a small network at a fixed pace. Sender, server and Chromium are separate processes. The page shows
the run. After each redraw of the scale's chart, its newest step is noted once the frame is painted. Updates of the
first seconds, in which sender and page start, are left out. The fastest of fifty readings relates the clocks, to about
a millisecond.

The other tools log a value at the same pace, with their fastest settings. TensorBoard's writer flushes and its server
reloads each second. Its page polls every 30 seconds, its minimum, so it gets six times as many updates: two of its
periods. trackio's page polls each second by default. For both, a step counts as painted once the page has received it,
and later drawing is not counted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from playwright.sync_api import Page

from benchmarks import peers
from benchmarks.delivery.training import training
from benchmarks.page import FULL, Effort
from benchmarks.page.browsing import clock, reading, until
from benchmarks.processes import Worker, working
from benchmarks.report import filled
from benchmarks.server import serving
from benchmarks.store import peer_servers
from benchmarks.store.timing import Client


BAR_P95_MS = 250.0
LAST_S = 90.0
"""The time limit for the page to show the last step."""

_PAINTED = """() => {
  const plot = document.querySelector("[data-figure=scale] .plot.js-plotly-plot");
  if (!plot) return false;
  window.seen = [];
  const note = (newest) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => window.seen.push([newest, performance.now()]);
    port2.postMessage(0); // arrives once the frame is painted
  };
  plot.on("plotly_afterplot", () => {
    const newest = Number(plot._fullData.find((each) => each.name === "loss scale").x.at(-1));
    requestAnimationFrame(() => note(newest));
  });
  return true;
}"""
_RECEIVED = """
window.seen = [];
const note = (text) => {
  const steps = [...text.matchAll(/"step": ?(\\d+)/g)].map((found) => Number(found[1]));
  if (steps.length) window.seen.push([Math.max(...steps), performance.now()]);
};
const ask = window.fetch;
window.fetch = async (...all) => {
  const answer = await ask(...all);
  void answer.clone().text().then(note, () => {});
  return answer;
};
const send = XMLHttpRequest.prototype.send;
XMLHttpRequest.prototype.send = function (...all) {
  this.addEventListener("load", () => { if (/^(text)?$/.test(this.responseType)) note(this.responseText); });
  return send.apply(this, all);
};
localStorage.setItem("_tb_global_settings", JSON.stringify({ autoReload: true, autoReloadPeriodInMs: 30000 }));
"""

Seen: TypeAlias = list[tuple[int, float]]
"""Newest steps on the page, and when each was seen, by `time.perf_counter` in ms."""


class Arrivals(NamedTuple):
    """When each update returned, in ns, and what the page showed."""

    returned: list[int]
    seen: Seen


def measure(directory: Path, effort: Effort = FULL) -> list[dict[str, Any]]:
    """A row for each tool. Takes some minutes. Fills ``directory``."""
    rows = []
    with peers.quiet(directory):
        for tool, (peer, ask) in TOOLS.items():
            work = directory / tool
            work.mkdir()
            arrivals, note = peers.tried(peer, partial(ask, work, effort))
            rows.append(_row(tool, arrivals, note, effort))
    own = rows[0]["p50_ms"]
    return [{**row, "p50_to_ampmon": _ratio(row["p50_ms"], own)} for row in filled(rows)]


def latencies(arrivals: Arrivals, warm_up: int) -> list[float]:
    """Milliseconds from the return of each update after the warm-up until the page showed it or a later one."""
    seen, found = iter(arrivals.seen), []
    newest, at = next(seen)
    for step, returned in enumerate(arrivals.returned):
        while newest < step:
            newest, at = next(seen)
        if step >= warm_up:
            found.append(at - returned / 1e6)
    return found


def _row(tool: str, arrivals: Arrivals | None, note: str | None, effort: Effort) -> dict[str, Any]:
    row: dict[str, Any] = {"what": tool, "updates_per_s": effort.per_second}
    if arrivals is None:
        return {**row, "note": note}
    each = latencies(arrivals, effort.warm_up)
    p50, p95 = (float(cut) for cut in np.percentile(each, (50, 95)))
    barred = tool == "ampmon"
    return {
        **row,
        "updates": len(each),
        "p50_ms": round(p50, 1),
        "p95_ms": round(p95, 1),
        "worst_ms": round(max(each), 1),
        "bar_p95_ms": BAR_P95_MS if barred else None,
        "holds": ("yes" if p95 <= BAR_P95_MS else "no") if barred else None,
        "each_ms": [round(one, 1) for one in each],
        "note": None,
    }


def _ratio(value: float | None, own: float | None) -> float | None:
    return round(value / own, 1) if value and own else None


def _ampmon(work: Path, effort: Effort) -> Arrivals:
    updates = effort.warm_up + effort.updates
    with serving(work) as (url, token, _), reading(url, token) as page:
        page.goto(url)
        with training("model", updates, effort.per_second, monitored=(work, url)) as process:
            client = Client(token)
            runs = f"{url}/api/v1/runs"
            (run,) = until(page, "the run", lambda: json.loads(client.get(runs))["runs"])
            page.goto(f"{url}/#/runs/{run['run_id']}")
            until(page, "the chart", lambda: page.evaluate(_PAINTED))
            return _arrivals(page, process, updates)


def _arrivals(page: Page, process: Worker, updates: int) -> Arrivals:
    returned = json.loads(process.read())
    until(page, "the last step", lambda: _newest(page) >= updates - 1, LAST_S)
    there = clock(page)
    return Arrivals(returned, [(step, there(at)) for step, at in page.evaluate("seen")])


def _newest(page: Page) -> int:
    return int(page.evaluate("Math.max(-1, ...seen.map(([step]) => step))"))


def _peer(
    tool: str, serve: Callable[[Path], AbstractContextManager[str]], path: str, times: int = 1
) -> Callable[[Path, Effort], Arrivals]:
    def ask(work: Path, usual: Effort) -> Arrivals:
        updates = usual.warm_up + times * usual.updates
        logging = ("benchmarks.page.logger", tool, work, updates, usual.per_second)
        with (
            peers.quiet(work),
            working(*logging, killed=True) as process,
            serve(work) as url,
            reading(url) as page,
        ):
            page.add_init_script(_RECEIVED)
            process.say("go")
            time.sleep(2)  # so the run exists before the page opens
            page.goto(url + path)
            return _arrivals(page, process, updates)

    return ask


def _reloading(directory: Path) -> AbstractContextManager[str]:
    return peer_servers.tensorboard(directory, "--reload_interval", "1")


TOOLS: dict[str, tuple[str | None, Callable[[Path, Effort], Arrivals]]] = {
    "ampmon": (None, _ampmon),
    "TensorBoard": ("tensorboard", _peer("tensorboard", _reloading, "/#timeseries", 6)),
    "trackio": ("trackio", _peer("trackio", peer_servers.trackio, "/?project=benchmark")),
}
