"""`ampmon report`: a real training run in one file, which opens without a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, BrowserContext, Page

import ampmon
from browser import Lent
from typed import typed
from waiting import wait_for
from warm import completed


NAME = "run </script><b>&amp; 5"
UPDATES = 60


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose data directory holds a run with overflows, sent to no server."""
    directory = tmp_path_factory.mktemp("report")
    ampmon.init(
        "tests", NAME, {"lr": 0.05, "note": "<i>x</i>"}, dir=directory / "data", mode="offline"
    )
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = ampmon.GradScaler(
        "cpu", init_scale=2.0**22, growth_interval=10, model=model, monitor=ampmon.Config(every=2)
    )
    for _ in range(UPDATES):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(
                model(torch.randn(8, 16)), torch.randint(0, 4, (8,))
            )
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        ampmon.log({"loss": loss, "role:attacker": 1.0})
    assert scaler.monitor is not None
    assert scaler.monitor.skips
    ampmon.finish()
    return directory


@pytest.fixture(scope="module")
def written(trained: Path) -> Path:
    """The report of that run, written by a separate process."""
    path = trained / "run.html"
    done = completed(["report", "--data-dir", str(trained / "data"), "-o", str(path)])
    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
    assert done.stdout.startswith(f"{path}: {NAME}, ")
    return path


@pytest.fixture
def asked() -> list[str]:
    """The page's requests, console messages and errors."""
    return []


@pytest.fixture(scope="module")
def offline(kept_browser: Lent) -> Iterator[BrowserContext]:
    """A dark browser context without a network, for all tests: its process compiles the file's script once."""
    with kept_browser() as browser:
        context = browser.new_context(offline=True, color_scheme="dark")
        context.new_page()  # never closed, so the process stays
    yield context
    with kept_browser():
        context.close()


@pytest.fixture
def blank(offline: BrowserContext, browser: Browser) -> Iterator[Page]:
    """An empty page, for as long as the test has the browser."""
    page = offline.new_page()
    yield page
    page.close()


@pytest.fixture
def opened(written: Path, blank: Page, asked: list[str]) -> Page:
    """The report, opened without a network."""
    page = blank

    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda said: asked.append(said.text))
    page.on("pageerror", lambda error: asked.append(str(error)))
    page.goto(written.as_uri())
    return page


def until(page: Page, condition: str) -> None:
    """Wait for a JavaScript condition; Playwright's own wait needs what the file's content policy forbids."""
    wait_for(lambda: page.evaluate(condition), condition)


def texts(page: Page, selector: str) -> list[str]:
    return [text.replace("\u202f", " ") for text in page.locator(selector).all_inner_texts()]


def test_a_report_opens_offline_and_asks_for_nothing(opened: Page, asked: list[str]) -> None:
    """A report opened offline draws its charts, says what the page says, and requests nothing else."""
    until(opened, "document.querySelector('.plot:not(.js-plotly-plot)') === null")
    names = opened.locator("[data-figure]").evaluate_all(
        "all => all.map(one => one.dataset.figure)"
    )
    assert {"scale", "skips", "underflow", "exponents", "whatif", "simulated"} <= set(names)
    _says_what_the_page_says(opened)
    assert len(asked) == 1, asked


def _says_what_the_page_says(opened: Page) -> None:
    """Check name, findings with fixes, numbers, skips and configuration, and that markup in names is text."""
    assert texts(opened, "h1") == [NAME]
    assert opened.locator("h1 b, pre i").count() == 0
    assert opened.locator(".finding").count() > 0
    assert any("GradScaler(" in text for text in texts(opened, ".finding pre"))
    assert f"of {UPDATES}" in texts(opened, ".numbers")[0]
    rows = opened.locator("tbody tr").count()
    assert rows == int(texts(opened, ".numbers dd")[2].split()[0])
    assert '"note": "<i>x</i>"' in texts(opened, ".ledger pre")[0]


def test_a_file_that_is_there_is_kept(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --force, `ampmon report` overwrites no file; it rejects an unknown run by name."""
    monkeypatch.chdir(written.parent)
    before = written.read_bytes()
    command = ("report", "--data-dir", "data")
    code, _, err = typed(*command, "-o", written.name)
    assert code == 2
    assert "run.html already exists" in err
    assert written.read_bytes() == before
    code, _, err = typed(*command, "nonesuch", "-o", "other.html")
    assert code == 2
    assert "there is no run 'nonesuch'" in err
    assert not (written.parent / "other.html").exists()


def test_a_chart_without_scripts_says_what_it_lacks(written: Path, browser: Browser) -> None:
    """Where a report is shown without its scripts, a chart says so in its place, not that it is still loading."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(written.as_uri())
    said = page.locator("[data-figure=scale] .plot").evaluate(
        "plot => getComputedStyle(plot, '::before').content"
    )
    context.close()
    assert said == '"This chart needs JavaScript."'
