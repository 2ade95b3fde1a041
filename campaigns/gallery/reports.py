"""The gallery's reports and pictures. Reports share styles and scripts: with its own Plotly each would have 5 MB."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from playwright.sync_api import Page, expect

from ampmon_server.client.answering import answering
from ampmon_server.report import gather
from ampmon_server.report import page as whole
from browser import chromium
from campaigns.clinic.drawn import find
from campaigns.clinic.pictures import THEMES, WAIT_MS
from campaigns.clinic.session import Session
from campaigns.gallery.exhibits import Exhibit


WIDTH, DENSITY, MARGIN = 390, 2, 8
"""Pictures show the report at a phone's width, so that they are readable on one."""
POLICY = "default-src 'none'; script-src 'self' file:; style-src 'self' file: 'unsafe-inline'; img-src data: blob:"
"""Works on a server that forbids inline scripts, and from a folder."""
LINKS = {
    "css": ("report.css", '<link rel="stylesheet" href="report.css">'),
    "plotly": ("plotly.min.js", '<script src="plotly.min.js" defer></script>'),
    "js": ("report.js", '<script src="report.js" defer></script>'),
}
"""The parts that all reports share: each with its file and the reference that replaces it."""
PLOTLY = LINKS["plotly"][0]
"""Not written: `make docs` and the server use the installed package's copy."""
_PARTS = re.compile(
    r'<style>\n(?P<css>.*?)</style>|<script>(?P<plotly>.*?)</script>|<script type="module">\n(?P<js>.*?)</script>',
    re.DOTALL,
)
_POLICY = re.compile(r'(http-equiv="Content-Security-Policy" content=")[^"]*')
_MAIN = re.compile(r"<main[^>]*>\n")
_BARE = """
.panel .caption, .panel details, .ledger tr:nth-child(n + 3) { display: none }
.panel { padding: 0; margin-top: 24px }
"""
"""Hides parts of the report in a picture: captions, details, and all skips but the newest two."""


def make(
    exhibits: Sequence[Exhibit],
    session: Session,
    folder: Path,
    version: str,
    made: Callable[[Path], object] = lambda _: None,
) -> None:
    """Train the exhibits and write their reports and pictures; call ``made`` with each report. Blocks for minutes.

    Raises ValueError before it writes anything if the first finding of a run is not the exhibit's rule.
    """
    verdicts = session.run([find(each.patient) for each in exhibits])
    for exhibit, verdict in zip(exhibits, verdicts, strict=True):
        if verdict.first != exhibit.rule:
            raise ValueError(
                f"{exhibit.title}: the first finding is {verdict.first}, not {exhibit.rule}"
            )
    folder.mkdir(parents=True, exist_ok=True)
    with session.server() as server, chromium() as browser:
        screen = browser.new_page(
            viewport={"width": WIDTH, "height": WIDTH * 2}, device_scale_factor=DENSITY
        )
        with answering(server.url, None, server.token_file) as asked:
            for exhibit, verdict in zip(exhibits, verdicts, strict=True):
                report = whole(gather(asked, verdict.run_id), version)
                for theme, ending in THEMES.items():
                    _picture(screen, report, exhibit, theme, folder / f"{exhibit.name}{ending}.png")
                made(_write(report, exhibit, folder))


def _write(report: str, exhibit: Exhibit, folder: Path) -> Path:
    """Write the report without its shared parts, and those parts beside it."""

    def link(part: re.Match[str]) -> str:
        file, reference = LINKS[part.lastgroup or ""]
        if file != PLOTLY:
            (folder / file).write_text(part[part.lastgroup or ""], "utf-8")
        return reference

    text = _POLICY.sub(lambda found: found[1] + html.escape(POLICY), _PARTS.sub(link, report), 1)
    path = folder / f"{exhibit.name}.html"
    path.write_text(_MAIN.sub(lambda found: found[0] + _label(exhibit), text, 1), "utf-8")
    return path


def _label(exhibit: Exhibit) -> str:
    """The lines above a report: the way back, and what to look at."""
    look = re.sub(r"`(.+?)`", r"<code>\1</code>", html.escape(exhibit.look))
    look = re.sub(r"[*](.+?)[*]", r"<em>\1</em>", look)
    return (
        '<p style="margin-bottom: 24px"><a href="../gallery.html">Gallery</a> · '
        f"<strong>{html.escape(exhibit.title)}</strong> · "
        f'<a href="../findings/{exhibit.rule}.html">{exhibit.rule}</a><br>\n'
        f"{look}</p>\n"
    )


def _picture(
    screen: Page, report: str, exhibit: Exhibit, theme: Literal["light", "dark"], path: Path
) -> None:
    screen.emulate_media(color_scheme=theme)
    screen.set_content(report)
    if exhibit.figure is None:
        part = screen.locator(".ledger").first
    else:
        part = screen.locator(f"[data-figure={exhibit.figure}]")
        expect(part.locator(".plot-container")).to_be_visible(timeout=WAIT_MS)
    screen.add_style_tag(content=_BARE)
    box = part.bounding_box()
    assert box is not None
    screen.screenshot(
        path=path,
        full_page=True,
        clip={
            "x": box["x"] - MARGIN,
            "y": box["y"] - MARGIN,
            "width": box["width"] + 2 * MARGIN,
            "height": box["height"] + 2 * MARGIN,
        },
    )
