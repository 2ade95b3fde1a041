"""Activations in a real browser: their chart, and what the ledger of skips says about them."""

from __future__ import annotations

import math

import numpy as np

from batches import Trainer, activations
from posted import post
from web.reader import Reader


def test_activations_have_their_place_on_the_page(reader: Reader) -> None:
    """The chart shows the newest sample in view and does not zoom. The ledger names the overflow's origin."""
    trainer = Trainer()
    exploded = activations(forward=np.array([2.0, math.inf, math.nan]).tobytes())
    updates = trainer.updates(40, sampled=(0, 30))
    exploding = trainer.update(skipped=True, activations=exploded)
    post(reader.server, trainer.batch([*updates, exploding]))
    reader.open(f"#/runs/{trainer.run_id}")
    reader.wait("the chart of the scale", reader.points)
    reader.tab("activations")
    reader.figure("activations").scroll_into_view_if_needed()
    words = reader.wait("the chart of activations", lambda: reader.caption("activations"))
    names = "plot.layout.yaxis.ticktext"
    reader.wait("its rows", lambda: reader.plot("activations", names))

    assert "Step 40," in words
    assert "Overflow in the forward pass, first in block.mlp." in words
    assert reader.plot("activations", names) == ["embedding", "block.mlp", "block"]
    reader.tab("skips")
    ledger = "[data-ledger=skips] [data-origin=forward]"
    reader.wait("the ledger", lambda: reader.text(ledger))
    assert reader.text(ledger) == "✕ inf in forward, first in block.mlp"

    reader.tab("activations")
    reader.page.get_by_label("Zoom in").click()
    reader.wait("the zoom", lambda: "start=" in reader.ask("location.hash"))
    reader.figure("activations").scroll_into_view_if_needed()
    reader.wait(
        "the sample in view",
        lambda: "Step 30," in reader.caption("activations"),
    )
    assert reader.range("activations")[0] == 0


def test_the_ledger_says_what_is_known_of_the_loss(reader: Reader) -> None:
    """The ledger says whether the loss was finite, else where it went wrong: a module, the input or the loss."""
    trainer = Trainer()
    cases = (
        {"loss": "not_finite", "origin": "forward", "origin_module": 2},
        {"loss": "not_finite", "origin": "input"},
        {"loss": "not_finite", "origin": "loss"},
        {"loss": "not_finite"},
        {"loss": "overflowed"},
        {"loss": "finite"},
    )
    post(reader.server, trainer.batch([trainer.update(skipped=True, **each) for each in cases]))
    reader.open(f"#/runs/{trainer.run_id}")
    reader.tab("skips")
    cells = reader.page.locator("[data-ledger=skips] span:has(> [data-cause])")
    reader.wait("the ledger", lambda: cells.count() == len(cases))
    assert [words.replace("\n", ", ") for words in cells.all_inner_texts()][::-1] == [
        "✕ inf in forward, first in block.mlp, loss not finite",
        "✕ inf in the model's input, loss not finite",
        "✕ inf in the loss, loss not finite",
        "✕ inf, loss not finite",
        "✕ inf in backward, loss finite, loss × scale overflowed",
        "✕ inf in backward, loss finite",
    ]
