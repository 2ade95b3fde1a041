"""Trains in one process, serves in another, and looks at the page in a browser while it happens."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import ampmon
from scaler.test_measuring import ALWAYS, SCALE, batch, loss_of, network, train
from serving import Server
from training import Trainer, stored
from waiting import wait_for
from web.reader import Reader


def test_the_page_follows_a_training(
    server: Server, new_reader: Callable[[Server], Reader]
) -> None:
    """The chart gains points and the table of skips a row with its culprit, without an error or a foreign request."""
    reader, rows = new_reader(server), "[data-ledger=skips] tbody tr"
    with Trainer() as trainer:
        trainer.train(50)
        wait_for(lambda: stored(server, trainer.run_id))
        reader.open(f"#/runs/{trainer.run_id}")
        first = reader.wait("the chart", reader.points)
        trainer.train(100)
        reader.wait("more points", lambda: reader.points() > first)
        reader.tab("skips")
        reader.wait("a culprit", lambda: ["bias" in row for row in reader.texts(rows)] == [True])
        trainer.train(100)
        reader.wait("another skip", lambda: len(reader.texts(rows)) == 2)
        for name in ("skips", "underflow", "exponents"):
            reader.figure(name).scroll_into_view_if_needed()
            reader.wait(name, lambda name=name: reader.plot(name, "true"))


def test_a_reader_has_the_gradient_error_measured(
    server: Server, new_reader: Callable[[Server], Reader]
) -> None:
    """A click beside a finding of underflow has the trainer measure, and the finding then tells the layer's error."""
    run_id = ampmon.init("tests", "measured")
    scaler = ampmon.GradScaler("cpu", init_scale=SCALE, monitor=ALWAYS)
    model, given = network(), batch()
    ampmon.measure_on_request(scaler, model, given, loss_of)
    training = train(scaler, model, given, 10**6)

    def goes_on(seen: Callable[[], object]) -> Callable[[], object]:
        return lambda: seen() or (list(itertools.islice(training, 20)) and None)

    reader, button = new_reader(server), ".finding button:text('Measure the error')"
    wait_for(goes_on(lambda: stored(server, str(run_id))))
    reader.open(f"#/runs/{run_id}")
    reader.wait("the button", goes_on(reader.page.locator(button).count))
    reader.page.locator(".findings > summary").click()
    reader.page.locator(button).first.click()
    reader.wait("word of it", lambda: "Measurement requested at" in reader.text(".findings"))
    words = "fp16 changed the gradient of"
    reader.wait("the error", goes_on(lambda: words in reader.text(".findings")))

    finding = server.get(f"/runs/{run_id}/diagnosis")["findings"][0]
    assert finding["rule"] == "slow_growth"
    assert 0.01 < finding["evidence"]["measured_error"] < 1
    assert server.get(f"/runs/{run_id}/diagnosis")["measurement"]["asked"] is None
