"""Shows a run in a notebook: its charts as Plotly figures, or its page in a cell.

The page's own code draws the charts, in the colours of one theme. The data comes from the server at ``url``, else from
the server that runs on the data directory, else from its database. `ampmon doctor` looks in the same order.
"""

from __future__ import annotations

import html
import textwrap
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import parse_qs, urlsplit

import msgspec
import plotly.graph_objects as go

from ampmon.system.plain import plain, plain_finding
from ampmon.wire import Finding
from ampmon_server.charts import RUN_FIGURES
from ampmon_server.charts.parts.layout import escaped
from ampmon_server.charts.parts.roles import resolve
from ampmon_server.client import LATEST, ApiClient, ClientError, choose
from ampmon_server.client.answering import answering
from ampmon_server.client.answers import RECOMMENDED, Diagnosed, Run, read
from ampmon_server.client.sketch import array_of, sketch
from ampmon_server.model.words import plural
from ampmon_server.pages import assets


Theme: TypeAlias = Literal["light", "dark"]

LINE = 120
"""Maximum characters per line of the text above a chart."""

LINE_PIXELS = 16

IN_A_CELL = ("scale", "skips", "underflow")
"""The charts that a cell shows when it cannot show the page."""

SKETCH = 72
"""Width in characters of the text sketch of the scale, for notebooks that cannot draw Plotly charts."""

AGAIN_S = 0.2


def figure(
    run: str = LATEST,
    name: str = "scale",
    *,
    theme: Theme = "light",
    url: str | None = None,
    data_dir: Path | str | None = None,
    token_file: Path | str | None = None,
    **asked: object,
) -> go.Figure:
    """Return the chart ``name`` of a run. ``run`` is an id, the beginning of an id, or a name; default: the newest run.

    ``asked`` takes the query options of ``GET /api/v1/runs/{run_id}/figures/{name}``: ``start``, ``stop``, ``x``,
    ``statistic`` and so on. Pass the name of a logged value as ``logged``. If there is nothing to draw, the figure says
    why. Blocks until the server answers. Raises `ampmon_server.client.ClientError`, whose message says what to do.
    """
    with answering(url, data_dir, token_file) as server:
        return _drawn(server, choose(server, run).run_id, name, theme, asked)


def figures(
    run: str = LATEST,
    *,
    theme: Theme = "light",
    url: str | None = None,
    data_dir: Path | str | None = None,
    token_file: Path | str | None = None,
    **asked: object,
) -> dict[str, go.Figure]:
    """Return every chart of a run by its name, as `figure` does. Blocks; raises `ampmon_server.client.ClientError`."""
    with answering(url, data_dir, token_file) as server:
        run_id = choose(server, run).run_id
        return {name: _drawn(server, run_id, name, theme, asked) for name in RUN_FIGURES}


@dataclass(frozen=True, slots=True)
class NotebookPage:
    """The page of a run as a notebook displays it. Every display requests a new one-time sign-in code."""

    address: str
    height: int
    code: Callable[[], str]

    def _repr_html_(self) -> str:
        query = "&" if "?" in self.address else "?"
        source = html.escape(f"{self.address}{query}code={self.code()}")
        return (
            f'<iframe src="{source}" width="100%" height="{self.height}" style="border:0" '
            'allow="clipboard-write" referrerpolicy="no-referrer" title="ampmon"></iframe>'
        )


def page(
    run: str | None = None,
    *,
    url: str | None = None,
    browser_url: str | None = None,
    height: int = 800,
    data_dir: Path | str | None = None,
    token_file: Path | str | None = None,
) -> NotebookPage:
    """Return the live page of a run for a cell, or the list of runs if ``run`` is None. The server must keep running.

    ``url`` is the server's address for this process. ``browser_url`` is its address for the browser, if that differs:
    behind a proxy, or in Colab. The server must allow the notebook's origin with ``--frame-ancestors``. ``height`` is
    in pixels. Blocks until the server answers. Raises `ampmon_server.client.ClientError`.
    """
    ask = partial(answering, url, data_dir, token_file)
    with ask() as server:
        if server.page is None:
            raise ClientError("no running server found that serves the page: start `ampmon serve`")
        shown = (browser_url or server.page).rstrip("/")
        path = "#/" if run is None else f"#/runs/{choose(server, run).run_id}"
    return NotebookPage(f"{shown}/{path}", height, partial(_code, ask))


@dataclass(frozen=True, slots=True)
class Cell:
    """The content of a cell that cannot show a run's live page: text with charts below it."""

    words: str
    charts: tuple[go.Figure, ...] = ()

    def __repr__(self) -> str:
        return self.words

    def _ipython_display_(self) -> None:
        from IPython import get_ipython
        from IPython.display import display

        written = (
            f'<pre style="white-space: pre-wrap; line-height: 1.3">{html.escape(self.words)}</pre>'
        )
        display({"text/plain": self.words, "text/html": written}, raw=True)
        if hasattr(get_ipython(), "kernel"):  # a terminal draws no chart
            for chart in self.charts:
                display(chart)


def show(
    run: str = LATEST,
    *,
    theme: Theme = "light",
    height: int = 800,
    browser_url: str | None = None,
    url: str | None = None,
    data_dir: Path | str | None = None,
    token_file: Path | str | None = None,
    wait_s: float = 0.0,
) -> NotebookPage | Cell:
    """Return the live page of a run for a cell, or its findings and charts if no server can show the page there.

    If no server answers, the cell says why. Takes the arguments of `page` and `figure`. Blocks, and waits up to
    ``wait_s`` seconds for a run that has just begun.
    """
    ask = partial(answering, url, data_dir, token_file)
    try:
        with ask() as server:
            run_id = _awaited(server, run, wait_s).run_id
            if server.page is not None and server.may_be_framed:
                shown = (browser_url or server.page).rstrip("/")
                return NotebookPage(f"{shown}/#/runs/{run_id}", height, partial(_code, ask))
            charts = tuple(_drawn(server, run_id, name, theme, {}) for name in IN_A_CELL)
            return Cell(_words(server, run_id), charts)
    except ClientError as why:
        return Cell(f"ampmon: {why}")


def _awaited(server: ApiClient, run: str, wait_s: float) -> Run:
    end = time.monotonic() + wait_s
    while True:
        try:
            return choose(server, run)
        except ClientError:
            if time.monotonic() >= end:
                raise
        time.sleep(AGAIN_S)
        server.catch_up()


def _words(server: ApiClient, run_id: str) -> str:
    """Describe a run as text: its status, its findings with their fixes, and the address of its page."""
    run = read(server.get(f"/runs/{run_id}"), Run)
    diagnosed = read(server.get(f"/runs/{run_id}/diagnosis"), Diagnosed)
    head = f"{run.name}  {run.project}, {run.status}, {plural(run.updates, 'step')}"
    drawn = sketch(server.get(f"/runs/{run_id}/figures/scale", {"width": "100"}), SKETCH)
    between = f"loss scale, 2^{drawn.low:g} to 2^{drawn.high:g}, and skipped steps\n"
    parts = [f"{head}\n{diagnosed.training.sentence}"]
    parts += [f"{between}{drawn.line}\n{drawn.marks}".rstrip()] if drawn.line else []
    parts += [
        f"{each.severity}: {each.title}\n{textwrap.indent(_fix(each), '    ')}".rstrip()
        for each in map(plain_finding, diagnosed.findings)
    ] or [diagnosed.verdict if run.updates else "no steps recorded"]
    where = "No server is running. For the live page, start: ampmon serve"
    if server.page is not None:
        where = (
            f"Live page: {server.page}/#/runs/{run_id}\nTo show it here, start the server with the notebook's address: "
            "ampmon serve --frame-ancestors http://localhost:8888"
        )
    return plain("\n\n".join([*parts, where]), lines=True)


def _fix(finding: Finding) -> str:
    return f"{finding.second or RECOMMENDED}\n{finding.fix}" if finding.fix else ""


def _code(ask: Callable[[], AbstractContextManager[ApiClient]]) -> str:
    """Request a one-time code that signs in one browser."""
    with ask() as server:
        link: str = msgspec.json.decode(server.post("/login-links"))["url"]
    return parse_qs(urlsplit(link).query)["code"][0]


def _drawn(
    server: ApiClient, run_id: str, name: str, theme: Theme, asked: dict[str, object]
) -> go.Figure:
    fields = {key: str(value) for key, value in asked.items() if value is not None}
    if "logged" in fields:
        fields["name"] = fields.pop("logged")
    document = msgspec.json.decode(server.get(f"/runs/{run_id}/figures/{name}", fields))
    roles = assets.themes()[theme]
    return _titled(resolve(_dated(document), roles), roles)


def _dated(figure: dict[str, Any]) -> dict[str, Any]:
    """Move times to the zone that the axis names, as the page does. Plotly would show them by the browser's clock."""
    layout = figure["layout"]
    if "zone" not in layout["meta"]:
        return figure
    there = timezone(timedelta(minutes=layout["meta"]["zone"]))

    def dates(times: Iterable[float]) -> list[str]:
        return [datetime.fromtimestamp(each / 1000, there).isoformat() for each in times]

    for trace in figure["data"]:
        trace["x"] = dates(array_of(trace["x"]))
    for shape in layout["shapes"]:
        if shape.get("xref") != "paper":
            shape["x0"], shape["x1"] = dates([shape["x0"], shape["x1"]])
    layout["xaxis"]["range"] = dates(layout["xaxis"]["range"])
    return figure


def _titled(document: dict[str, Any], roles: dict[str, Any]) -> go.Figure:
    """Put the texts that the page shows around a chart above it, and set the theme's background."""
    meta, layout = document["layout"]["meta"], document["layout"]
    said = [meta.get(part, "") for part in ("caption", "sentence", "standing", "code")]
    words = [line for each in said for line in textwrap.wrap(each, LINE)]
    title = "<br>".join([f"<b>{escaped(meta['title'])}</b>", *map(escaped, words)])
    above = (2 + len(words)) * LINE_PIXELS
    margin = layout.get("margin", {"l": 24, "r": 24, "t": 0, "b": 24})
    drawn = go.Figure(document)
    drawn.update_layout(
        template="none",
        paper_bgcolor=roles["background"],
        plot_bgcolor=roles["background"],
        height=layout.get("height", 120) + above,
        margin={**margin, "t": margin["t"] + above},
        title={
            "text": title,
            "font": {"size": 13, "color": roles["ink"]},
            "x": 0,
            "xanchor": "left",
            "y": 1,
            "yanchor": "top",
            "yref": "container",
            "pad": {"l": 8, "t": 16},
        },
    )
    if "empty" in meta:
        why = "<br>".join(map(escaped, textwrap.wrap(meta["empty"], LINE)))
        drawn.add_annotation(text=why, showarrow=False, font={"color": roles["muted"]})
        drawn.update_xaxes(visible=False).update_yaxes(visible=False)
    return drawn
