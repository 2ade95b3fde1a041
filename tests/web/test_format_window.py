"""The window of a number format over the heatmap of exponents, as a reader moves it."""

from __future__ import annotations

import numpy as np
from playwright.sync_api import Request, expect

from ampmon.numerics.formats import E4M3, FP16, FloatFormat
from ampmon.numerics.histogram import BINS, EXPONENT_MIN
from ampmon_server.analysis.rescaling import elsewhere
from ampmon_server.model.words import percent
from posted import PostedRun
from web.reader import Reader


PART = "[aria-label='Elements lost at another loss scale']"
RECORDED = 16


def _server_says(level: int, into: FloatFormat) -> list[str]:
    """The server's shares of `PostedRun`'s values, recorded at 2^16: total loss, overflow, subnormal, below range."""
    histogram = np.zeros(BINS, np.int64)
    histogram[np.arange(-9, 11) - EXPONENT_MIN] = 400
    of = elsewhere(histogram, np.array(10_000), level - RECORDED, into)
    # The page counts whole bins by their exponent.
    subnormal = of.subnormal_most + of.flushed_least - of.flushed_most
    shares = [of.overflow_least, subnormal, of.flushed_most]
    return [percent(float(share)).replace("\u202f", " ") for share in (sum(shares), *shares)]


def test_the_window_follows_the_slider(reader: Reader) -> None:
    """Dragging the slider moves the window and updates the shares without a request; they equal the server's.

    Another format keeps the scale, and a button restores the recorded window.
    """
    asked: list[str] = []

    def note(request: Request) -> None:
        if "/figures/exponents" in request.url:
            asked.append(request.url)

    reader.page.on("request", note)
    run = PostedRun(reader.server)
    run.updates(20)
    reader.show(run)
    reader.figure("exponents").scroll_into_view_if_needed()
    slider = reader.page.locator(f"{PART} input")
    expect(slider).to_be_visible()
    slider.scroll_into_view_if_needed()
    reader.catch_up()
    assert reader.texts(f"{PART} dd") == ["0 %"] * 4
    for_the_page = set(asked)
    box = slider.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    reader.page.mouse.move(box["x"] + box["width"] * 0.6, y)
    reader.page.mouse.down()
    tops = []
    for end, level, counted in (
        (box["width"] + 9, 32, ["44 %", "44 %", "0 %", "0 %"]),
        (-9, -8, ["76 %", "0 %", "40 %", "36 %"]),
    ):
        reader.page.mouse.move(box["x"] + end, y, steps=8)
        reader.wait("the shares", lambda shown=counted: reader.texts(f"{PART} dd") == shown)
        assert _server_says(level, FP16) == counted
        tops.append(reader.ask("document.querySelector('.window i').getBoundingClientRect().top"))
    reader.page.mouse.up()
    assert tops[0] > tops[1]
    assert (
        set(asked) == for_the_page
    )  # the page may renew its charts meanwhile, but the slider requests none
    assert slider.get_attribute("aria-valuetext") == "2⁻⁸, 76\u202f% lost"
    recorded = reader.figure("exponents").locator(".scatterlayer .trace").first
    expect(recorded).to_have_css("visibility", "hidden")

    reader.figure("exponents").locator("select").select_option("e4m3")
    reader.wait("E4M3", lambda: reader.texts(f"{PART} dd") == _server_says(-8, E4M3))
    assert "E4M3 holds magnitudes" in reader.caption("exponents")
    assert "format=e4m3" in reader.page.url
    reader.page.get_by_role("button", name="Show recorded scale").click()
    expect(recorded).to_have_css("visibility", "visible")
    reader.wait("the newest", lambda: reader.texts(f"{PART} dd") == _server_says(RECORDED, E4M3))
    slider.press("ArrowLeft")
    reader.wait("by a key", lambda: reader.texts(f"{PART} dd") == _server_says(15, E4M3))
