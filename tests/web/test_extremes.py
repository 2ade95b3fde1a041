"""Runs that no training is likely to make, in a real browser: each has a sensible picture, whole at any width."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import UUID

import pytest

from ampmon_server.settings import Settings
from extremes import EXTREMES, LONG, MARKUP, make, make_long
from serving import Server
from web.layout import faults
from web.reader import Reader
from web.views import ALL_OF_IT, settle


WIDTHS = (390, 1440)
ON_A_DESK_TOO = {"not finite", "ranks that disagree", "long"}
"""Where there is room on a phone there is on a desk: a few are looked at there all the same."""
PLANT = """style => {
    const planted = document.createElement("p");
    planted.textContent = "something too wide";
    planted.style = style;
    document.querySelector("main").append(planted);
}"""

Extremes = tuple[Server, dict[str, UUID]]


@pytest.fixture(scope="module")
def extreme(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Extremes]:
    """A server of all extremes, and their runs by name."""
    server = Server(tmp_path_factory.mktemp("extreme") / "ampmon")
    settings = Settings(data_directory=server.directory)
    runs = {**make(settings), "long": make_long(settings)}
    server.start()
    yield server, runs
    server.stop()


@pytest.mark.parametrize("name", [*EXTREMES, "long"])
def test_each_extreme_has_a_sensible_picture(
    extreme: Extremes, new_reader: Callable[[Server], Reader], name: str
) -> None:
    """On a phone, and some on a desk, every chart is drawn or says why not, and nothing is cut off or sticks out."""
    server, runs = extreme
    reader = new_reader(server)
    for width in WIDTHS if name in ON_A_DESK_TOO else WIDTHS[:1]:
        reader.size(width, ALL_OF_IT)
        if width == WIDTHS[0]:
            reader.open(f"#/runs/{runs[name]}")
        settle(reader)
        assert faults(reader.page) == []
    if name == "long":
        assert reader.range()[1] >= LONG - 1
    assert reader.ask("window.harmed") is None


@pytest.mark.parametrize("width", WIDTHS)
def test_the_list_bears_every_name(
    extreme: Extremes, new_reader: Callable[[Server], Reader], width: int
) -> None:
    """All of them in one list: names are text, and nothing is cut off or sticks out."""
    server, runs = extreme
    reader = new_reader(server)
    reader.size(width)
    reader.open()
    reader.wait("all runs", lambda: len(reader.texts("table.runs tbody tr")) == len(runs))
    reader.wait("the scale", lambda: "2^" in reader.text("table.runs tbody"))
    assert faults(reader.page) == []
    assert MARKUP in reader.text("table.runs tbody")
    assert reader.ask("window.harmed") is None


def test_what_sticks_out_or_is_cut_off_is_noticed(reader: Reader) -> None:
    """Something that is too wide, and something that is cut off without a word, are told."""
    reader.open()
    reader.wait("the list", lambda: reader.text("h1"))
    for style in ("width: 3000px", "width: 20px; overflow: hidden; white-space: nowrap"):
        reader.page.evaluate(PLANT, style)
    found = faults(reader.page)
    assert any(each.startswith("sticks out: p") for each in found)
    assert any(each.startswith("cut off: p") for each in found)
