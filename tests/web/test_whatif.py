"""Other scales and other policies, as a reader tries them on the page."""

from __future__ import annotations

from posted import PostedRun
from web.reader import Reader


PART = ".part.whatif"


def _shown(reader: Reader, chart: str) -> None:
    """Scroll to a chart and wait until it is drawn: those above it come in between."""
    reader.wait("the charts", lambda: reader.points("scale"))

    def drawn() -> bool:
        reader.figure(chart).scroll_into_view_if_needed()
        return reader.points(chart) > 0

    reader.wait(f"the chart {chart}", drawn)


def test_a_scale_is_tried_with_a_slider(reader: Reader) -> None:
    """The slider moves by keys; what comes of a scale is said with its code, stands in the address, and comes back."""
    run = PostedRun(reader.server)
    run.updates(20)
    reader.show(run)
    _shown(reader, "whatif")
    reader.wait("the best", lambda: "best, chosen" in str(_labels(reader)))
    best = int(reader.ask("document.querySelector('.whatif input').value"))

    slider = reader.page.locator(f"{PART} input")
    slider.focus()
    for _ in range(3):
        slider.press("ArrowLeft")
    tried = f"2^{best - 3}"
    reader.wait("the sentence", lambda: reader.text(".sentence").startswith(f"At {tried}: "))
    assert "Today, at 2^16: " in reader.text(".sentence")
    assert reader.text(f"{PART} code") == f"scaler = ampmon.GradScaler(init_scale=2.0**{best - 3})"
    assert f"whatif_scale={best - 3}" in reader.ask("location.hash")

    reader.figure("whatif").locator("select").select_option("bf16")
    reader.wait("bf16", lambda: "bfloat16" in reader.text(f"{PART} code"))
    reader.open(reader.ask("location.hash"))
    _shown(reader, "whatif")
    reader.wait("the same scale in bf16", lambda: f"At {tried} in bf16" in reader.text(".sentence"))


def _labels(reader: Reader) -> object:
    return reader.plot("whatif", "plot.layout.annotations.map(each => each.text)")
