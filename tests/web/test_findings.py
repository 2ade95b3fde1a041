"""What the page says is wrong with a run, in a real browser: in a word, why, and what to write instead."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

import ampmon
from batches import Trainer
from posted import PostedRun, post
from scaler.test_measuring import ALWAYS, SCALE, batch, loss_of, network, train
from training import stored
from waiting import wait_for
from web.reader import Reader


FIRST = ".finding:first-child"
VERDICT = ".findings > summary .verdict"


def test_a_run_says_what_is_wrong_with_it(own_reader: Reader) -> None:
    """A run is healthy until it is not: then the worst finding stands open, with reason, code, steps and its page.

    Before its first update there is nothing to judge by, and in the list it has no verdict, though it was judged.
    """
    reader = own_reader  # of a server with one run: it looks at all that are running in turn
    run = PostedRun(reader.server)
    _not_healthy_yet(reader, run)
    run.updates(40)
    reader.show(run)
    reader.wait("the verdict", lambda: reader.text(VERDICT) == "✓\nhealthy")
    assert reader.text(".answer") == "No problems found."
    assert reader.texts(".finding") == []

    for _ in range(5):
        run.updates(9)
        run.updates(skipped=True)
    reader.wait("the verdict", lambda: reader.text(VERDICT) == "▲\nwarning")
    finding = reader.server.get(f"{run.path}/diagnosis")["findings"][0]
    reader.wait("all five skips", lambda: reader.text(".answer") == finding["title"])
    assert reader.text(FIRST) == ""
    reader.page.click(".answer")
    shown = reader.text(FIRST)
    for part in ("severity", "title", "explanation", "fix"):
        assert finding[part] in shown
    assert reader.ask(f"document.querySelector('{FIRST} a').pathname") == "/findings/culprit_layer"

    reader.page.click(f"{FIRST} summary")
    assert finding["explanation"] not in reader.text(FIRST)
    run.updates(skipped=True)
    reader.wait("new numbers", lambda: "6 of 6 skips" in reader.text(FIRST))
    assert finding["explanation"] not in reader.text(FIRST)
    reader.page.click(f"{FIRST} summary")

    reader.page.click(f"{FIRST} .ways button:first-child")
    reader.wait("word of the copy", lambda: reader.text(f"{FIRST} .ways button") != "Copy the code")
    reader.page.click(f"{FIRST} .ways button:nth-child(2)")
    reader.wait("the steps", lambda: "start=49&stop=91" in reader.ask("location.hash"))
    reader.wait("the charts", lambda: reader.text(".where") == "Showing steps 49 – 90")

    reader.open()
    cell = "table.runs td[data-name=Diagnosis]"
    reader.wait(
        "the worst in words", lambda: reader.text(cell).startswith("▲\nhead.weight is the first")
    )


def _not_healthy_yet(reader: Reader, run: PostedRun) -> None:
    reader.open(f"#{run.path}")
    reader.wait("the answer", lambda: reader.text(".answer").startswith("No steps recorded yet"))
    reader.wait("the judge", lambda: reader.server.get(run.path)["verdict"] == "healthy")
    reader.open()
    reader.wait("its row", lambda: reader.text("table.runs tbody").startswith("made up"))
    assert "healthy" not in reader.text("table.runs tbody")


def test_a_finding_says_of_which_scaler_it_is(reader: Reader) -> None:
    """Where a run has several: else two of one rule could not be told apart."""
    first = Trainer(scaler="generator")
    second = Trainer(run_id=first.run_id, attempt_id=first.attempt_id, scaler="critic")
    post(reader.server, first.batch(first.updates(40)))
    post(reader.server, second.batch(second.updates(40, skipped=range(10, 30))))
    reader.open(f"#/runs/{first.run_id}")
    reader.wait("the finding", lambda: reader.page.locator(FIRST).count())
    reader.page.click(".answer")
    reader.wait("whose it is", lambda: "Scaler critic" in reader.text(FIRST))


def test_a_reader_has_the_gradient_error_measured(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A click beside a finding of underflow has a trainer elsewhere measure; the finding then tells a layer's error."""
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

    told = reader.server.get(f"/runs/{run_id}/diagnosis")
    assert 0.01 < told["findings"][0]["evidence"]["measured_error"] < 1
    assert told["measurement"]["asked"] is None


def test_an_error_message_is_read_on_a_phone(reader: Reader) -> None:
    """Its address shows it at the top of the screen; long messages and code are broken, so nothing stands outside."""
    reader.size(390)
    reader.load("findings/errors#current-loss-scale-already-at-minimum")
    place = (
        "document.getElementById('current-loss-scale-already-at-minimum').getBoundingClientRect().y"
    )

    reader.wait("the message", lambda: 0 <= reader.ask(place) < 200)
    assert reader.ask("document.documentElement.scrollWidth <= innerWidth")
