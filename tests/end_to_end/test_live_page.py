"""Trains in one process, serves in another, and looks at the page in a browser while it happens."""

from __future__ import annotations

from typing import Any

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

import browser as chromium
from serving import Server
from training import Trainer, wait_for


POINTS = "return document.querySelector('[data-figure=scale] .plot.js-plotly-plot')?._fullData?.[0]?._length ?? 0"


def skipped_rows(page: Chrome) -> list[str]:
    """The rows of the table of skips."""
    return [row.text for row in page.find_elements(By.CSS_SELECTOR, "[data-ledger=skips] tbody tr")]


def figures_drawn(page: Chrome) -> list[Any]:
    """The names of the charts that are drawn."""
    drawn = page.find_elements(By.CSS_SELECTOR, "[data-figure]:has(.js-plotly-plot)")
    return [panel.get_attribute("data-figure") for panel in drawn]


def test_the_page_follows_a_training(server: Server, browser: Chrome) -> None:
    """The chart gains points and the table of skips a row with its culprit, without an error or a foreign request."""
    browser.get(server.login_link())
    with Trainer(2000, 0.02) as trainer:
        browser.get(f"{server.url}/#/runs/{trainer.run_id}")
        first = wait_for(lambda: browser.execute_script(POINTS))
        wait_for(lambda: browser.execute_script(POINTS) > first)
        wait_for(lambda: any("bias" in row for row in skipped_rows(browser)))
        rows = len(skipped_rows(browser))
        wait_for(lambda: len(skipped_rows(browser)) > rows)
        wait_for(
            lambda: set(figures_drawn(browser)) >= {"scale", "skips", "underflow", "exponents"}
        )
    assert chromium.console_errors(browser) == []
    foreign = [
        address
        for address in chromium.requested(browser)
        if not address.startswith(server.url + "/")
    ]
    assert foreign == []
