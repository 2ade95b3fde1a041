"""Findings on a run's page in a real browser: verdict, reason and fix."""

from __future__ import annotations

import numpy as np
from playwright.sync_api import expect

from ampmon.numerics.histogram import BINS, EXPONENT_MIN
from batches import Trainer, counted
from posted import PostedRun, post
from web.reader import Reader


FIRST = ".finding:first-child"
LISTED = "#/?search=to+be+judged"
VERDICT = ".findings > summary .verdict"


def test_a_run_says_what_is_wrong_with_it(passer_by: Reader) -> None:
    """A healthy run says so; an unhealthy one shows its worst finding with reason, code, steps and page.

    Before its first update, a run has no verdict.
    """
    reader = passer_by
    run = PostedRun(reader.server, "to be judged")
    _not_healthy_yet(reader, run)
    run.updates(40)
    reader.arrive(run)
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
    reader.unfold_findings()
    shown = reader.text(FIRST)
    for part in ("severity", "title", "explanation", "fix"):
        assert finding[part] in shown
    assert reader.ask(f"document.querySelector('{FIRST} a').pathname") == "/findings/culprit_layer"
    assert reader.text(f"{FIRST} .code p") == "Recommended:"
    assert reader.text(".findings").count(finding["title"]) == 1
    assert reader.text(".findings > summary").startswith("1 finding")
    assert "85 of 90 steps applied" in reader.text(".findings").replace("\u202f", " ")

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

    reader.open(LISTED)
    cell = "table.runs td[data-name=Diagnosis]"
    reader.wait(
        "the worst in words", lambda: reader.text(cell).startswith("▲\nhead.weight is the first")
    )


def _not_healthy_yet(reader: Reader, run: PostedRun) -> None:
    reader.open(f"#{run.path}")
    reader.wait("the answer", lambda: reader.text(".answer").startswith("No steps recorded"))
    reader.wait("the judge", lambda: reader.server.get(run.path)["verdict"] == "healthy")
    reader.open(LISTED)
    reader.wait("its row", lambda: reader.text("table.runs tbody").startswith("to be judged"))
    assert "healthy" not in reader.text("table.runs tbody")


def test_the_first_steps_are_judged_at_once(passer_by: Reader) -> None:
    """The page does not say that a run has no steps while it shows some: it reads the findings again at once."""
    reader, trainer = passer_by, Trainer()
    reader.page.add_init_script(
        """const later = setTimeout;
        window.setTimeout = (work, ms) => (ms > 300 ? 0 : later(work, ms));  // no reading that was put off
        window.setInterval = () => 0;"""
    )
    post(reader.server, trainer.batch())
    reader.open(f"#/runs/{trainer.run_id}")
    answer = reader.page.locator(".answer")
    expect(answer).to_have_text("No steps recorded.")
    post(reader.server, trainer.batch(trainer.updates(40)))
    expect(answer).to_have_text("No problems found.")


def test_a_finding_says_of_which_scaler_it_is(reader: Reader) -> None:
    """If a run has several scalers, a finding names its own."""
    first = Trainer(scaler="generator")
    second = Trainer(run_id=first.run_id, attempt_id=first.attempt_id, scaler="critic")
    post(reader.server, first.batch(first.updates(40)))
    post(reader.server, second.batch(second.updates(40, skipped=range(10, 30))))
    reader.open(f"#/runs/{first.run_id}")
    reader.wait("the finding", lambda: reader.page.locator(FIRST).count())
    reader.unfold_findings()
    reader.wait("whose it is", lambda: "Scaler critic" in reader.text(FIRST))


def test_a_reader_has_the_gradient_error_measured(reader: Reader) -> None:
    """A click beside an underflow finding requests a measurement, and the finding then shows a layer's error."""
    trainer = Trainer()
    histogram = np.zeros((2, BINS), np.int64)
    histogram[:, np.array([-16, -13]) - EXPONENT_MIN] = 40
    lost = counted(histogram, amax=2.0**-13, sum_squares=40 * 4.0**-13).to_wire()
    updates = [trainer.update(gradients=lost) for _ in range(60)]
    post(reader.server, trainer.batch([trainer.event("measurable", stream="scaler"), *updates]))
    reader.open(f"#/runs/{trainer.run_id}")
    button = ".finding button:text('Measure the error')"
    reader.wait("the button", reader.page.locator(button).count)
    reader.unfold_findings()
    reader.page.locator(button).first.click()
    reader.wait("word of it", lambda: "Measurement requested at" in reader.text(".findings"))
    found = {"error": 0.05, "modules": {"head": 0.05}, "scale": 1024.0}
    post(reader.server, trainer.batch([trainer.event("measured", stream="scaler", **found)]))
    reader.wait(
        "the error", lambda: "fp16 changed the gradient of module head" in reader.text(".findings")
    )


def test_a_line_of_code_is_whole_where_the_page_has_room(reader: Reader) -> None:
    """A line of a hundred characters in a fix does not break at 1440 pixels."""
    run = PostedRun(reader.server, "with a long line")
    run.updates(20)
    run.updates(20, skipped=True)
    reader.arrive(run)
    reader.unfold_findings()
    code = reader.page.locator(f"{FIRST} .code code")
    lines = """(code, letters) => {
        const shown = code.textContent;
        code.textContent = "x".repeat(letters);
        const lines = code.getClientRects().length;
        code.textContent = shown;
        return lines;
    }"""
    assert [code.evaluate(lines, letters) for letters in (10, 100)] == [1, 1]
