"""Pictures for the documentation of the rules: a patient's finding and chart, drawn by the real page in a browser."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Literal

from playwright.sync_api import Page, expect

from browser import chromium
from campaigns.clinic.verdict import Verdict
from threaded_server import ThreadedServer


DEFAULT_FIGURE = "scale"
"""For a finding that names no chart."""
WIDTH, HEIGHT = 940, 1400
WAIT_MS = 20_000
THEMES: dict[Literal["light", "dark"], str] = {"light": "", "dark": "-dark"}
"""The suffix of a picture's name. The documentation shows the one in the reader's theme."""

_ALONE = """
([rule, figure]) => {
const finding = document.querySelector(`details.finding[data-rule=${rule}]`);
const panel = document.querySelector(`[data-figure=${figure}]`);
const both = document.createElement("main");
both.id = "picture";
both.style.cssText = "padding: 8px; max-width: none";
both.append(finding);
document.body.replaceChildren(both);
const plot = panel?.querySelector(".plot.js-plotly-plot");
finding.open = !plot;
if (!plot) return;
both.append(panel);
return Plotly.Plots.resize(plot);
}
"""


def take(verdicts: Iterable[Verdict], server: ThreadedServer, folder: Path) -> list[Path]:
    """Take a picture of each rule in each theme, of the first patient with that first finding, else of any that has it.

    Blocks.
    """
    right = [each for each in verdicts if each.right]
    chosen: dict[str, Verdict] = {}
    for each in right:
        if each.first:
            chosen.setdefault(each.first, each)
    for each in right:
        for rule in each.figures:
            chosen.setdefault(rule, each)
    folder.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(server.login_link())
        return [
            _take(page, theme, rule, each, server, folder)
            for theme, (rule, each) in product(THEMES, chosen.items())
        ]


def _take(
    page: Page,
    theme: Literal["light", "dark"],
    rule: str,
    verdict: Verdict,
    server: ThreadedServer,
    folder: Path,
) -> Path:
    page.emulate_media(color_scheme=theme)
    figure = verdict.figures[rule] or DEFAULT_FIGURE
    page.goto("about:blank")
    page.goto(f"{server.url}/#/runs/{verdict.run_id}")
    expect(page.locator(f"details.finding[data-rule={rule}]")).to_be_attached(timeout=WAIT_MS)
    drawn(page, figure)
    page.evaluate(_ALONE, [rule, figure])
    path = folder / f"{rule}{THEMES[theme]}.png"
    page.locator("#picture").screenshot(path=path)
    return path


def drawn(page: Page, figure: str) -> None:
    """Open a chart's tab, and wait until the chart is drawn or says why not."""
    panel = page.locator(f"[data-figure={figure}]")
    panel.wait_for(state="attached", timeout=WAIT_MS)
    for tab in panel.locator("xpath=ancestor::*[@role='tabpanel']").all():
        page.locator(f"#{tab.get_attribute('aria-labelledby')}").click()
    panel.scroll_into_view_if_needed()
    words = ".empty:not([hidden], :text('Loading'))"
    found = panel.locator(f".plot.js-plotly-plot .plot-container, {words}")
    expect(found.first).to_be_visible(timeout=WAIT_MS)
