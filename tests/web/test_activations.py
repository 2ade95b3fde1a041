"""Activations in a real browser: a chart in its place among the others, and what the ledger of skips says of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from selenium.webdriver import Chrome

from ampmon import wire
from batches import Trainer, activations
from serving import Server
from web.test_page import Page


PLOT = "[data-figure=activations] .plot"


@pytest.fixture
def page(browser: Chrome, server: Server) -> Page:
    browser.get(server.login_link())
    return Page(browser, server)


def post(server: Server, trainer: Trainer, *records: wire.Record) -> None:
    answer = server.request(
        "POST",
        "/api/v1/ingest",
        body=wire.encode(trainer.batch(records)),
        headers={"Content-Type": "application/msgpack"},
    )
    assert answer.status == 200, answer.data


def test_activations_have_their_place_on_the_page(page: Page) -> None:
    """The chart shows the newest sample in view, is not zoomed with the steps, and the ledger says where it began."""
    trainer = Trainer()
    exploded = activations(forward=np.array([2.0, math.inf, math.nan]).tobytes(), loss=math.nan)
    post(
        page.server,
        trainer,
        *trainer.updates(40, sampled=(0, 30)),
        trainer.update(skipped=True, activations=exploded),
    )
    page.open(f"#/runs/{trainer.run_id}")
    page.wait("the chart of the scale", page.points)
    page.ask(f"document.querySelector('{PLOT}').scrollIntoView({{block: 'center'}})")
    words = page.wait(
        "the chart of activations", lambda: page.text("[data-figure=activations] .caption")
    )
    names = f"document.querySelector('{PLOT}').layout.yaxis.ticktext"
    page.wait("its rows", lambda: page.ask(f"document.querySelector('{PLOT}').layout"))

    assert "Step 40," in words
    assert "Overflowed in forward, first in block.mlp." in words
    assert page.ask(names) == ["embedding", "block.mlp", "block"]
    ledger = "[data-ledger=skips] [data-origin=forward]"
    assert page.text(ledger) == "✕ inf in forward, first in block.mlp"

    page.click(".toolbar [aria-label='Zoom in']")
    page.wait("the zoom", lambda: "start=" in page.ask("location.hash"))
    page.wait(
        "the sample in view",
        lambda: "Step 30," in page.text("[data-figure=activations] .caption"),
    )
    assert page.ask(f"document.querySelector('{PLOT}').layout.xaxis.range[0]") == 0
    assert page.quarrels() == []


def test_a_run_without_activations_says_how_to_have_them(page: Page) -> None:
    """Where nothing was asked for, the chart's place holds the line of code that brings it."""
    trainer = Trainer()
    post(page.server, trainer, *trainer.updates(5))
    page.open(f"#/runs/{trainer.run_id}")
    page.wait("the chart of the scale", page.points)
    empty = "[data-figure=activations] .empty"
    page.ask(f"document.querySelector('{empty}').scrollIntoView()")

    page.wait("the words", lambda: "Config(activations=100)" in page.text(empty))
    assert page.quarrels() == []
