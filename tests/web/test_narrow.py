"""The page on small screens, as at 400 % zoom, and in a high-contrast mode."""

from __future__ import annotations

from posted import PostedRun
from web.layout import faults
from web.reader import Reader
from web.views import settle


WIDTH = 320
NAME = "n" * 120


def test_long_names_make_no_view_wider_than_a_small_screen(reader: Reader) -> None:
    """A long project, logged name and number of lost records break or are cut, on a run's page and in a comparison."""
    runs = [PostedRun(reader.server, NAME, project=NAME) for _ in range(2)]
    for run in runs:
        run.updates(2)
        run.lose(100_000)
        run.logs([{NAME: 0.5}] * 3)
    reader.size(WIDTH)
    reader.show(runs[0])
    reader.wait("what was lost", lambda: "lost" in reader.text(".health"))
    assert faults(reader.page) == []
    reader.open(f"#/compare?runs={runs[0].run_id},{runs[1].run_id}")
    settle(reader)
    assert faults(reader.page) == []


def test_high_contrast_keeps_what_tells_apart(reader: Reader) -> None:
    """In forced colors, a legend's squares keep their colors, and the open tab and the chosen axis stand out."""
    run = PostedRun(reader.server)
    run.updates(3)
    reader.show(run)
    reader.wait("the legend", lambda: reader.points("underflow"))
    reader.page.emulate_media(forced_colors="active")
    colours = """([selector, name]) => [...document.querySelectorAll(selector)]
        .filter((one) => one.checkVisibility()).map((one) => getComputedStyle(one)[name])"""
    for selector, name in (
        ("[data-figure=underflow] .readout i", "backgroundColor"),
        ("[role=tab]", "borderBottomColor"),
        ("[data-x=step], [data-x=time]", "backgroundColor"),
    ):
        found = reader.page.evaluate(colours, [selector, name])
        assert len(set(found)) >= 2, (selector, found)
    reader.page.emulate_media(forced_colors="none")
