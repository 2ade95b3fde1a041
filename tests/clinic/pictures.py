"""Pictures for the pages of the rules: what the page shows of a patient, drawn by the real page in a real browser."""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import tempfile
import urllib.request
from collections.abc import Iterable
from pathlib import Path

from selenium.common.exceptions import TimeoutException
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

import browser as chromium
from clinic.verdict import Verdict
from threaded_server import ThreadedServer


DEFAULT_FIGURE = "scale"
"""Of a finding that names no chart."""
WIDTH, HEIGHT = 940, 1400
WAIT_S = 20.0

_DRAWN = (
    "return !!document.querySelector('[data-figure={figure}] .plot.js-plotly-plot .plot-container')"
)
_TOLD = "return !!document.querySelector('details.finding[data-rule={rule}]')"
_ALONE = """
const finding = document.querySelector("details.finding[data-rule=" + arguments[0] + "]");
const panel = document.querySelector("[data-figure=" + arguments[1] + "]");
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
"""


def take(verdicts: Iterable[Verdict], server: ThreadedServer, folder: Path) -> list[Path]:
    """A picture for each rule, of the first patient in which it comes first; else of one in which it comes at all.

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
    profile = tempfile.mkdtemp(prefix="ampmon-clinic-")
    chrome = chromium.start(Path(profile), width=WIDTH, height=HEIGHT)
    try:
        chrome.get(_login_link(server))
        return [_take(chrome, rule, each, server, folder) for rule, each in chosen.items()]
    finally:
        chrome.quit()
        shutil.rmtree(profile, ignore_errors=True)


def _take(
    chrome: Chrome, rule: str, verdict: Verdict, server: ThreadedServer, folder: Path
) -> Path:
    figure = verdict.figures[rule] or DEFAULT_FIGURE
    chrome.get("about:blank")
    chrome.get(f"http://127.0.0.1:{server.port}/#/runs/{verdict.run_id}")
    wait = WebDriverWait(chrome, WAIT_S)
    wait.until(functools.partial(_asked, _TOLD.format(rule=rule)))
    with contextlib.suppress(TimeoutException):  # a run without updates has no chart
        wait.until(functools.partial(_asked, _DRAWN.format(figure=figure)))
    chrome.execute_script(_ALONE, rule, figure)
    path = folder / f"{rule}.png"
    chrome.find_element(By.ID, "picture").screenshot(str(path))
    return path


def _asked(script: str, chrome: Chrome) -> bool:
    return bool(chrome.execute_script(script))


def _login_link(server: ThreadedServer) -> str:
    token = (server.directory / "token").read_text().strip()
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}/api/v1/login-links",
        method="POST",
        headers={"Authorization": f"Bearer {token}"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(json.load(answer)["url"])
