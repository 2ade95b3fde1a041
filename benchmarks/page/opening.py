"""Opening the page of a run of ten million updates, 148 parameters and a hundred thousand samples, and zooming in it.

Each opening starts a Chromium with nothing cached. The window is tall enough for all charts, so the page requests all.
Chart times run from the end of Plotly's script to the frame that shows the chart. `plotly_script_ms` is the time from
the page's start to that end. The longest main-thread task is one that begins after it. Transferred bytes include
headers, but not Plotly's script.

A zoom is a click in a window 1000 pixels high. It ends when the last visible chart is repainted. Then the slider below
the heatmap is dragged back and forth, one move per frame, and each frame is timed. A headless browser draws 60 frames
per second.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from playwright.sync_api import Page

from ampmon_server.settings import Settings
from benchmarks.page import FULL, Effort
from benchmarks.page.browsing import reading, until
from benchmarks.paired import shown
from benchmarks.server import serving
from benchmarks.store.filling import fill
from benchmarks.store.real import real
from benchmarks.store.track import track


TALL = 12_000
DRAGS, MOVES = 4, 60
QUIET_MS = 500
"""After this time without drawing, a zoom is complete."""
BARS = {
    "first_chart_ms": 300.0,
    "all_charts_ms": 800.0,
    "longest_task_ms": 200.0,
    "transferred_kB": 500.0,
    "zoom_p95_ms": 200.0,
    "drag_frame_p95_ms": 17.0,
}
ZOOMS = (
    "Zoom in",
    "Zoom in",
    "Later",
    "Zoom in",
    "Earlier",
    "Zoom out",
    "Zoom in",
    "Zoom in",
    "Zoom out",
)

_WATCH = """
window.watched = { plotly: null, drawn: {}, tasks: [], asked: 0, redrawn: 0, settled: false };
new PerformanceObserver((list) => {
  for (const task of list.getEntries()) watched.tasks.push([task.startTime, task.duration]);
}).observe({ type: "longtask", buffered: true });
document.addEventListener("load", (event) => {
  if (/plotly/.test(event.target.src ?? "")) watched.plotly = performance.now();
}, true);
const afterPaint = (then) => {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = then;
  port2.postMessage(0); // arrives once the frame is painted
};
const painted = () => requestAnimationFrame(() => afterPaint(() => { watched.redrawn = performance.now(); }));
const look = () => {
  for (const plot of document.querySelectorAll("main [data-figure] .plot:not([hidden]):has(.main-svg)")) {
    const name = plot.closest("[data-figure]").dataset.figure;
    if (name in watched.drawn) continue;
    watched.drawn[name] = null;
    afterPaint(() => { watched.drawn[name] = performance.now(); });
    plot.on("plotly_afterplot", painted);
  }
  if (!watched.settled) requestAnimationFrame(look); // a look takes as long as a small chart
};
requestAnimationFrame(look);
document.addEventListener("click", () => { watched.asked = performance.now(); }, true);
"""
_WAITING = """[...document.querySelectorAll("main [data-figure]")].filter((panel) =>
    panel.checkVisibility() && panel.getBoundingClientRect().top < innerHeight && !watched.drawn[panel.dataset.figure]
    && !/^(?!Loading)./.test(panel.querySelector(".empty:not([hidden])")?.textContent ?? "")).length"""
_BYTES = """[...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
    .filter((each) => !/plotly/.test(each.name)).reduce((sum, each) => sum + each.transferSize, 0)"""


def measure(directory: Path, effort: Effort = FULL) -> list[dict[str, Any]]:
    """A row for each figure. Takes some minutes, most of them to fill ``directory``."""
    settings = Settings(data_directory=directory / "sqlite")
    (run,) = fill(settings, [(track(effort.size, seed=effort.size), real(effort.real_samples))])
    with serving(settings.data_directory, "--no-judging") as (url, token, _):
        address = f"{url}/#/runs/{run}"
        opened = [_opened(url, token, address) for _ in shown(range(effort.rounds), "openings")]
        zooms, frames = _zoomed(url, token, address, effort.zooms)
    figures = {name: [each[name] for each in opened] for name in opened[0]}
    return [
        *(_row(name, effort, median(values), values) for name, values in figures.items()),
        _row("zoom_p50_ms", effort, float(np.percentile(zooms, 50)), zooms),
        _row("zoom_p95_ms", effort, float(np.percentile(zooms, 95)), zooms),
        _row("drag_frame_p95_ms", effort, float(np.percentile(frames, 95)), frames),
    ]


def _row(name: str, effort: Effort, value: float, each: list[float]) -> dict[str, Any]:
    bar = BARS.get(name)
    return {
        "updates": effort.size,
        "what": name,
        "value": round(value, 1),
        "worst": round(max(each), 1),
        "times": len(each),
        "bar": bar,
        "to_bar": round(value / bar, 2) if bar else None,
        "holds": ("yes" if value <= bar else "no") if bar else None,
        "each": [round(one, 1) for one in each],
    }


def _opened(url: str, token: str, address: str) -> dict[str, float]:
    """The figures of one opening with a cold cache."""
    with reading(url, token, height=TALL) as page:
        page.add_init_script(_WATCH)
        page.goto(address)
        until(page, "all charts", lambda: _all_there(page))
        page.wait_for_timeout(QUIET_MS)
        watched = page.evaluate("watched")
        drawn, plotly = sorted(watched["drawn"].values()), watched["plotly"]
        tasks = [length for began, length in watched["tasks"] if began >= plotly - 1]
        return {
            "plotly_script_ms": plotly,
            "first_chart_ms": drawn[0] - plotly,
            "all_charts_ms": drawn[-1] - plotly,
            "longest_task_ms": max(tasks, default=0.0),
            "transferred_kB": page.evaluate(_BYTES) / 1000,
            "charts": float(len(drawn)),
        }


def _all_there(page: Page) -> bool:
    return page.evaluate("Object.keys(watched.drawn).length") and not page.evaluate(_WAITING)


def _zoomed(url: str, token: str, address: str, zooms: int) -> tuple[list[float], list[float]]:
    """The ms of each zoom, from the click until the last chart is repainted, and of each frame of a drag."""
    took = []
    with reading(url, token) as page:
        page.add_init_script(_WATCH)
        page.goto(address)
        until(page, "the charts", lambda: _all_there(page))
        page.wait_for_timeout(2 * QUIET_MS)
        page.evaluate("watched.settled = true")
        for number in shown(range(zooms), "zooms"):
            name = ZOOMS[number % len(ZOOMS)]
            page.locator(f".toolbar [aria-label^='{name}']").click()
            until(page, "the redrawing", lambda: page.evaluate(_AT_REST), within_s=30)
            took.append(page.evaluate("watched.redrawn - watched.asked"))
        return took, _dragged(page)


def _dragged(page: Page) -> list[float]:
    """The ms of each frame while the slider is dragged back and forth."""
    slider = page.locator("[aria-label='Elements lost at another loss scale'] input[type=range]")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    assert box is not None
    middle, reach = box["x"] + box["width"] / 2, box["width"] / 3
    page.mouse.move(middle, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.evaluate(_FRAMES)
    for turn in np.linspace(0, 2 * np.pi * DRAGS, DRAGS * MOVES):
        page.mouse.move(middle + reach * np.sin(turn), box["y"] + box["height"] / 2)
        page.wait_for_function("frames.length > moved && (moved = frames.length)")
    page.mouse.up()
    frames: list[float] = page.evaluate("frames")
    return np.diff(frames).tolist()


_FRAMES = """
window.frames = [];
window.moved = 0;
const next = (at) => { frames.push(at); requestAnimationFrame(next); };
requestAnimationFrame(next);
"""


_AT_REST = f"watched.redrawn > watched.asked && performance.now() - watched.redrawn > {QUIET_MS}"
