"""A reader's choices on a run's page in a real browser: axis, statistic, logged name and scaler."""

from __future__ import annotations

import msgspec
from playwright.sync_api import expect

from batches import Trainer
from posted import PostedRun, post
from web.reader import Reader


NAMES = ("loss", "lr", "accuracy", "norm", "<b>&amp;")
OWN = "[data-x=user]"
SCALER = "select[aria-label=Scaler]"


def choose(reader: Reader, figure: str, name: str, value: str) -> None:
    reader.figure(figure).locator(f"select[name={name}]").select_option(value)


def test_the_reader_chooses_what_is_drawn(reader: Reader) -> None:
    """Each statistic, each logged name and, once logged, the user's own steps can be drawn."""
    server, trainer, values = reader.server, Trainer(), dict.fromkeys(NAMES, 1.0)
    updates = trainer.updates(20, sampled=range(20))
    post(server, trainer.batch([*updates, trainer.scalars(values)]))
    reader.open(f"#/runs/{trainer.run_id}")
    reader.wait("the chart of the scale", reader.points)
    assert reader.text(".choice") == "step\ntime"

    reader.figure("parameters").scroll_into_view_if_needed()
    unit = "plot.layout.coloraxis.colorbar.title.text"
    reader.wait("the heatmap", lambda: reader.plot("parameters", unit))
    choose(reader, "parameters", "statistic", "headroom")
    reader.wait("headroom", lambda: reader.plot("parameters", unit).strip() == "bits")

    reader.figure("scalars").scroll_into_view_if_needed()

    def shown(words: str) -> bool:
        return reader.caption("scalars").startswith(words)

    reader.wait("the loss", lambda: shown("loss: 1 value"))
    choose(reader, "scalars", "name", NAMES[-1])
    reader.wait("the name", lambda: shown(f"{NAMES[-1]}: 1 value"))
    more = trainer.updates(5)
    own = msgspec.structs.replace(trainer.scalars(values), user_step=700)
    post(server, trainer.batch([*more, own]))
    reader.wait("the next value", lambda: shown(f"{NAMES[-1]}: 2 values"))
    choose(reader, "scalars", "name", "loss")
    reader.wait("the loss again", lambda: shown("loss: 2 values"))

    reader.wait("the button", lambda: reader.text(OWN) == "logged step")
    reader.page.click(OWN)
    axis = "plot.layout.xaxis.title.text"
    reader.wait("its axis", lambda: reader.plot("underflow", axis) == "logged step")


def test_the_choice_of_scaler_follows_the_view(reader: Reader) -> None:
    """The field names the scaler whose charts are shown, also after going back."""
    first = Trainer(scaler="first")
    second = Trainer(run_id=first.run_id, attempt_id=first.attempt_id, scaler="second")
    post(reader.server, first.batch(first.updates(20)))
    post(reader.server, second.batch(second.updates(20)))
    reader.open(f"#/runs/{first.run_id}")
    reader.wait("the chart of the scale", reader.points)
    chosen = f"document.querySelector('{SCALER}').selectedOptions[0]?.label"
    reader.wait("the first", lambda: reader.ask(chosen) == "first")
    for _ in range(2):
        reader.page.locator(SCALER).select_option("second")
        reader.wait("its address", lambda: "stream=" in reader.ask("location.hash"))
        reader.page.go_back()
        reader.wait("the first again", lambda: reader.ask(chosen) == "first")
        assert "stream=" not in reader.ask("location.hash")


def test_a_range_without_an_end_is_said_in_words(reader: Reader) -> None:
    """A link may name only the first step, of the optimizer's or of the logged ones."""
    run = PostedRun(reader.server)
    run.updates(3, sampled=False)
    reader.arrive(run)
    for query, words in (
        ("start=1", "steps from 1 on"),
        ("x=user&start=1", "logged steps from 1 on"),
    ):
        reader.open(f"#{run.path}?{query}")
        expect(reader.page.locator(".where")).to_have_text(f"Showing {words}")
