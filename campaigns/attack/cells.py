"""Notebook output of runs whose names hold HTML, scripts or Markdown: all is text. Ingest refuses escape characters."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ampmon_server import notebook
from campaigns.attack.tally import Tally, every
from posted import PostedRun
from serving import Server


HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "<a href='javascript:alert(1)'>x</a>",
    "[x](javascript:alert(1))",
    "![x](http://evil.example/x.png)",
    "<!--",
    "]]><script>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;img src=x onerror=alert(1)&#62;",
    "<b style='position:fixed'>x</b>",
    "<br>",
    "${alert(1)}",
    "%{x}<extra>y</extra>",
    "{{constructor.constructor('alert(1)')()}}",
    "$$\\href{javascript:alert(1)}{x}$$",
    "<iframe src=//evil.example>",
    "javascript:alert(1)",
)
_TAG = re.compile(
    r"<(?!/?(b|i|br|sub|sup|extra|em|span|strong)\b[^<>\"'=]*>)[a-z/!]", re.IGNORECASE
)
"""The start of a tag, except the tags without attributes that the figures themselves use."""
_SCRIPT = re.compile(r"<(script|img|svg|iframe|a)\b", re.IGNORECASE)


def show(tally: Tally, server: Server, directory: Path, nth: int = 1) -> None:
    """Render each chart of runs with hostile names, as JSON and as HTML, and their notebook pages."""
    usual = _drawn(server, "usual", directory)
    for name in every(HOSTILE, nth):
        for chart, (figure, written) in _drawn(server, name, directory).items():
            tags = [text for text in _texts(figure) if _TAG.search(text)]
            tally.note("a chart in a notebook, as a figure", (name, chart, tags[:3]), held=not tags)
            more = len(_SCRIPT.findall(written)) - len(_SCRIPT.findall(usual[chart][1]))
            tally.note("a chart in a notebook, as HTML", (name, chart, more), held=more == 0)
        shown = notebook.page(
            name, data_dir=directory, browser_url=f"https://hub.example/{name}"
        )._repr_html_()
        tags = re.findall(r"<[a-z!/]", shown)
        tally.note(
            "the page in a notebook",
            (name, shown),
            held=tags == ["<i", "</"] and shown.count('"') == 14,
        )


def _drawn(server: Server, name: str, directory: Path) -> dict[str, tuple[Any, str]]:
    """Each chart of a new run with this name: as JSON, and as the HTML that a notebook keeps."""
    run = PostedRun(
        server, name=name, parameters=(name, f"{name}.weight"), project=name, config={name: name}
    )
    for _ in range(4):
        run.updates(3)
        run.updates(skipped=True)
    charts = notebook.figures(name, data_dir=directory)
    return {
        chart: (
            json.loads(figure.to_json()),
            figure.to_html(include_plotlyjs=False, full_html=False, div_id="one"),
        )
        for chart, figure in charts.items()
    }


def _texts(figure: Any) -> Iterator[str]:
    """Every text of a figure that Plotly may show: all but ``meta`` and ``customdata``."""
    if isinstance(figure, str):
        yield figure
    elif isinstance(figure, list):
        for each in figure:
            yield from _texts(each)
    elif isinstance(figure, dict):
        for key, each in figure.items():
            if key not in {"meta", "customdata"}:
                yield from _texts(each)
