"""What the page says is wrong with a run, in a real browser: in a word, why, and what to write instead."""

from __future__ import annotations

import pytest
from selenium.webdriver import Chrome

from posted import PostedRun
from serving import Server
from web.test_page import Page


FIRST = ".finding:first-child"


@pytest.fixture
def page(browser: Chrome, server: Server) -> Page:
    browser.get(server.login_link())
    return Page(browser, server)


def test_a_run_says_what_is_wrong_with_it(page: Page) -> None:
    """A run is healthy until it is not: then the worst finding stands open, with reason, code, steps and its page."""
    run = PostedRun(page.server)
    run.updates(40)
    page.show(run)
    page.wait("the verdict", lambda: page.text(".state .verdict") == "✓\nhealthy")
    assert page.texts(".finding") == []

    for _ in range(5):
        run.updates(9)
        run.updates(skipped=True)
    page.wait("the verdict", lambda: page.text(".state .verdict") == "▲\nwarning")
    finding = page.server.get(f"{run.path}/diagnosis")["findings"][0]
    page.wait("all five skips", lambda: finding["title"] in page.text(FIRST))
    shown = page.text(FIRST)
    for part in ("severity", "title", "explanation", "fix"):
        assert finding[part] in shown
    assert page.ask(f"document.querySelector('{FIRST} a').pathname") == "/findings/culprit_layer"

    page.click(f"{FIRST} summary")
    assert finding["explanation"] not in page.text(FIRST)
    run.updates(skipped=True)
    page.wait("new numbers", lambda: "6 of 6 skips" in page.text(FIRST))
    assert finding["explanation"] not in page.text(FIRST)
    page.click(f"{FIRST} summary")

    page.click(f"{FIRST} .ways button:first-child")
    page.wait("word of the copy", lambda: page.text(f"{FIRST} .ways button") != "Copy the code")
    page.click(f"{FIRST} .ways button:nth-child(2)")
    page.wait("the steps", lambda: "start=49&stop=91" in page.ask("location.hash"))
    page.wait("the charts", lambda: page.text(".where") == "Showing steps 49 – 90")

    page.open()
    cell = "table.runs [data-name=Diagnosis]"
    page.wait(
        "the worst in words", lambda: page.text(cell).startswith("▲\nhead.weight is the first")
    )
    assert page.quarrels() == []
