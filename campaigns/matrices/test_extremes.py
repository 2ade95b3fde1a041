"""Unusual runs in a real browser: each is drawn completely at every width."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from uuid import UUID

import pytest

from batches import Trainer
from campaigns.extremes import EXTREMES, FROM_THE_RIGHT, MARKUP, make
from posted import post
from serving import Server
from web.layout import faults
from web.reader import Reader
from web.views import ALL_OF_IT, TABS, settle


WIDTHS = (390, 1440)
LONG, POSTS = 6_000, 2
"""Updates of the long run, far more than a chart has pixels, and the number of batches that hold them."""


@pytest.fixture(scope="module")
def extreme(served: Server) -> dict[str, UUID]:
    """The runs' ids, by name."""
    return make(partial(post, served))


@pytest.mark.parametrize("name", EXTREMES)
def test_each_extreme_has_a_sensible_picture(
    extreme: dict[str, UUID], reader: Reader, name: str
) -> None:
    """On a phone every chart is drawn or says why not, nothing is cut off or overflows, and no markup runs."""
    # Only that run's name is unusual.
    _look_at(reader, extreme[name], WIDTHS[:1], TABS[:1] if name == FROM_THE_RIGHT else TABS)
    assert reader.ask("window.harmed") is None


def test_a_long_run_has_a_sensible_picture(served: Server, reader: Reader) -> None:
    """On a phone and a desktop the whole run is drawn, and nothing is cut off or overflows."""
    trainer = Trainer(name="long")
    for _ in range(POSTS):
        updates = trainer.updates(
            LONG // POSTS, skipped=(1000,), sampled=range(0, LONG // POSTS, 100)
        )
        post(served, trainer.batch(updates))
    _look_at(reader, trainer.run_id, WIDTHS, TABS[:1])
    assert reader.range()[1] >= LONG - 1


def _look_at(reader: Reader, run: UUID, widths: Sequence[int], tabs: Sequence[str]) -> None:
    for width in widths:
        reader.size(width, ALL_OF_IT)
        if width == widths[0]:
            reader.open(f"#/runs/{run}")
        for tab in tabs:
            reader.tab(tab)
            settle(reader)
            assert faults(reader.page) == []


def test_the_list_bears_every_name(extreme: dict[str, UUID], reader: Reader) -> None:
    """The list shows every name as text at each width, and nothing is cut off or overflows."""
    reader.open("#/?project=extreme")
    rows = "table.runs tbody tr"
    reader.wait("all runs", lambda: len(reader.texts(rows)) == len(extreme))
    reader.wait("the scale", lambda: "2¹" in reader.text("table.runs tbody"))
    for width in WIDTHS:
        reader.size(width)
        assert faults(reader.page) == []
    assert MARKUP in reader.text("table.runs tbody")
    assert reader.ask("window.harmed") is None
