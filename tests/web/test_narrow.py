"""The layout at 320 pixels, as on a small phone or at 400 % zoom, with names that nothing can break."""

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
