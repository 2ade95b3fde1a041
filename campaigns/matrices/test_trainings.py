"""Real trainings with the page, the demo and a report, in cases that the suite leaves out."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

import ampmon
from end_to_end import test_the_whole_way
from scaler.test_measure_on_request import ALWAYS, SCALE, batch, loss_of, network, train
from server.test_report import asked, blank, offline, opened, texts, trained, until, written
from serving import Server
from test_demo import Demo, new_demo
from training import stored
from waiting import wait_for
from web.axe import violations
from web.reader import Reader


__all__ = ["asked", "blank", "new_demo", "offline", "opened", "trained", "written"]  # fixtures


def test_a_reader_has_the_gradient_error_measured(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A click on an underflow finding makes a remote trainer measure; the finding then states a layer's error."""
    reported = {"URL": reader.server.url, "TOKEN": reader.server.token, "MODE": "online"}
    for name, value in reported.items():
        monkeypatch.setenv(f"AMPMON_{name}", value)
    run_id = ampmon.init("tests", "measured")
    scaler = ampmon.GradScaler("cpu", init_scale=SCALE, monitor=ALWAYS)
    model, given = network(), batch()
    ampmon.measure_on_request(scaler, model, given, loss_of)
    training = train(scaler, model, given, 10**6)

    def goes_on(seen: Callable[[], object]) -> Callable[[], object]:
        return lambda: seen() or (list(itertools.islice(training, 5)) and None)

    button = ".finding button:text('Measure the error')"
    wait_for(goes_on(lambda: stored(reader.server, str(run_id))))
    reader.open(f"#/runs/{run_id}")
    reader.wait("the button", goes_on(reader.page.locator(button).count))
    reader.page.locator(".findings > summary").click()
    reader.page.locator(button).first.click()
    reader.wait("word of it", lambda: "Measurement requested at" in reader.text(".findings"))
    words = "fp16 changed the gradient of"
    reader.wait("the error", goes_on(lambda: words in reader.text(".findings")))

    diagnosis = reader.server.get(f"/runs/{run_id}/diagnosis")
    assert 0.01 < diagnosis["findings"][0]["evidence"]["measured_error"] < 1
    assert diagnosis["measurement"]["asked"] is None


def test_a_server_that_stops_and_comes_back_has_every_update_once(server: Server) -> None:
    """After the server shuts down during training and restarts, no update is lost or stored twice."""
    test_the_whole_way.check_comeback(server, server.stop)


def test_ctrl_c_ends_the_training_and_the_server(
    new_demo: Callable[..., Demo], new_server: Callable[..., Server]
) -> None:
    """Ctrl-C during training: exit code 0, no traceback, the server ends, and everything recorded is stored."""
    running = new_demo()
    running.wait_for("scale 1: ")

    assert running.interrupt() == 0
    assert "Traceback" not in running.printed
    assert not running.server.answers()
    (run,) = new_server(running.directory).get("/runs")["runs"]
    assert run["status"] == "finished"
    assert run["updates"] == run["last_step"] + 1
    assert run["lost_records"] == 0


def test_a_chart_that_fails_takes_no_other_along(written: Path, blank: Page) -> None:
    """A chart that fails says why in its place, and the following charts are drawn."""
    broken = written.with_name("broken.html")
    text = written.read_text("utf-8")
    broken.write_text(text.replace('"color":"role:scale"', '"color":"role:mauve"'), "utf-8")
    blank.goto(broken.as_uri())
    until(blank, "[...document.querySelectorAll('.plot')].every(one => one.textContent)")
    failed = texts(blank, ".plot:not(.js-plotly-plot)")
    assert set(failed) == {"Not drawn: unknown role: mauve"}
    assert blank.locator(".js-plotly-plot").count() > 3


def test_a_report_follows_the_readers_theme(opened: Page) -> None:
    """The report's charts are redrawn in light colors, and axe finds no violation in either theme."""
    until(opened, "document.querySelector('.plot:not(.js-plotly-plot)') === null")
    line = "document.querySelector('[data-figure=scale] .plot').layout.font.color"
    dark = opened.evaluate(line)
    assert violations(opened) == []
    opened.emulate_media(color_scheme="light")
    until(opened, f"{line} !== '{dark}'")
    assert violations(opened) == []
