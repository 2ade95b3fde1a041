"""A run as one file that opens offline: its verdict, findings, numbers, charts, skips and configuration.

The file contains everything that it needs, and loads nothing.
"""

from __future__ import annotations

import html
import json
import re
from datetime import datetime, timezone
from typing import Any

from ampmon_server.pages import assets
from ampmon_server.report.data import ReportData, gather
from ampmon_server.report.sections import sections


__all__ = ["ReportData", "gather", "page"]

STYLES = ("base", "controls", "status", "findings", "tables", "run", "whatif", "report")
SCRIPTS = ("roles", "report")

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
"""Forbids to load anything from the network."""

_SHELL = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,">
<style>
{style}
</style>
</head>
<body>
<main class="report run">
{body}
<footer>Made by ampmon {version}, {when}. This file loads nothing from the network.</footer>
</main>
<script type="application/json" id="roles">{roles}</script>
<script type="application/json" id="figures">{figures}</script>
<script type="application/json" id="figures-narrow">{narrow}</script>
<script>{plotly}</script>
<script type="module">
{script}
</script>
</body>
</html>
"""


def page(report: ReportData, version: str, now: datetime | None = None) -> str:
    """Return the whole file. Names given by users appear in it only as text."""
    when = (now or datetime.now(timezone.utc)).strftime("%Y-%m-%d %H:%M UTC")
    return _SHELL.format(
        title=html.escape(f"{report.run['name']} · ampmon"),
        policy=html.escape(POLICY),
        style=assets.embedded(STYLES),
        body=sections(report),
        version=html.escape(version),
        when=when,
        roles=_in_script(assets.themes()),
        figures=_in_script(_drawn({each.name: each.figure for each in report.charts})),
        narrow=_in_script(_drawn({each.name: each.narrow for each in report.charts})),
        plotly=assets.plotly().decode().replace("</script", "<\\/script"),
        script=script(),
    )


def _drawn(figures: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The figures that have something to draw."""
    return {name: figure for name, figure in figures.items() if figure["data"]}


def script() -> str:
    """Join the page's modules into one script, each after those that it imports."""
    files = [(assets.web_directory() / "js" / f"{name}.js").read_text("utf-8") for name in SCRIPTS]
    return re.sub(r"^import .*\n|^export ", "", "\n".join(files), flags=re.MULTILINE)


def _in_script(value: object) -> str:
    """Return JSON that cannot end its script element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
