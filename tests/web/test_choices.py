"""What a reader can choose on a run's page, in a real browser: the axis, the statistic and the name that are drawn."""

from __future__ import annotations

import msgspec
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select

from batches import Trainer
from serving import Server
from web.test_activations import post
from web.test_page import Page


NAMES = ("loss", "lr", "accuracy", "norm", "<b>&amp;")
OWN = "[data-x=user]"


def choose(page: Page, figure: str, value: str) -> None:
    select = page.chrome.find_element(By.CSS_SELECTOR, f"[data-figure={figure}] select")
    Select(select).select_by_value(value)


def test_the_reader_chooses_what_is_drawn(browser: Chrome, server: Server) -> None:
    """Each statistic, each name that was logged, and, once there are any, the user's own steps can be drawn."""
    browser.get(server.login_link())
    page, trainer, values = Page(browser, server), Trainer(), dict.fromkeys(NAMES, 1.0)
    post(server, trainer, *trainer.updates(20, sampled=range(20)), trainer.scalars(values))
    page.open(f"#/runs/{trainer.run_id}")
    page.wait("the chart of the scale", page.points)
    assert page.text(".choice") == "step\ntime"

    page.ask("document.querySelector('[data-figure=parameters]').scrollIntoView()")
    colours = "document.querySelector('[data-figure=parameters] .plot')?.layout?.coloraxis.colorbar"
    page.wait("the heatmap", lambda: page.ask(f"{colours}?.title.text"))
    choose(page, "parameters", "headroom")
    page.wait("headroom", lambda: page.ask(f"{colours}.title.text").strip() == "bits")

    caption = "[data-figure=scalars] .caption"
    page.wait("four names", lambda: page.text(caption).startswith("loss: 1 value"))
    choose(page, "scalars", NAMES[-1])
    page.wait("the name", lambda: page.text(caption).startswith(f"{NAMES[-1]}: 1 value"))
    more = trainer.updates(5)
    told = msgspec.structs.replace(trainer.scalars(values), user_step=700)
    post(server, trainer, *more, told)
    page.wait("the next value", lambda: page.text(caption).startswith(f"{NAMES[-1]}: 2 values"))
    choose(page, "scalars", "")
    page.wait("all names", lambda: page.text(caption).startswith("loss: 2 values"))

    page.wait("the button", lambda: page.text(OWN) == "your step")
    page.click(OWN)
    axis = "document.querySelector('[data-figure=scalars] .plot').layout.xaxis.title.text"
    page.wait("its axis", lambda: page.ask(axis) == "your own step")
    assert page.quarrels() == []
