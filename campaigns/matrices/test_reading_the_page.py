"""The steps of docs/reading-the-page.md, checked on a real run of the same script."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

import scripts
from browser import Lent
from serving import Server
from web.layout import faults
from web.reader import NOWHERE, Reader
from web.seat import Seat
from web.views import ALL_OF_IT, TABS, settle


ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "planted_overflow.py"
WALK = ROOT / "docs" / "reading-the-page.md"
CHARTS = ("scale", "skips", "underflow", "exponents", "parameters")


@pytest.fixture(scope="module")
def run_id(served: Server) -> str:
    """Train the script in its own process, reporting to the server, and return the id of the stored run."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AMPMON_")},
        "AMPMON_URL": served.url,
        "AMPMON_DIR": str(served.directory),
        "OMP_NUM_THREADS": "1",
    }
    scripts.run(str(SCRIPT), env=environment)
    runs = served.get("/runs")["runs"]
    found = next(run for run in runs if run["name"] == "planted_overflow")
    return str(found["run_id"])


@pytest.fixture(scope="module")
def on_run(kept_browser: Lent, seat: Seat, run_id: str) -> Iterator[Reader]:
    """A reader of the run, shared by all steps. Its first chart is drawn and it has every update."""
    with kept_browser() as browser:
        reader = seat.take(browser)
        reader.open(f"#/runs/{run_id}")
        reader.wait("the scale", reader.points)
        reader.wait("all", lambda: reader.text("[data-number=skipped] dd") == "13 of 600")
        yield reader
        left = seat.leave(reader)
        assert reader.page_errors() == []
        assert left == []


def _look_at(reader: Reader, name: str) -> str:
    """Scroll to a chart, wait until it is drawn, and return its caption."""

    def drawn() -> bool:
        reader.figure(name).scroll_into_view_if_needed()
        return bool(reader.plot(name, "true"))

    reader.wait(name, drawn)
    return reader.caption(name)


def test_step_1_is_the_run_healthy(on_run: Reader) -> None:
    """The summary says "warning" and opens on the worst finding, with its layer, code and number of applied steps."""
    line = on_run.page.locator(".findings > summary")
    expect(line).to_contain_text("warning")
    line.click()
    first = on_run.page.locator("details.finding").first
    expect(first).to_contain_text("is the first to overflow in 13 of 13 skips")
    assert first.evaluate("finding => finding.open")
    expect(first.locator("pre")).to_contain_text("enabled=False")
    expect(on_run.page.locator(".findings")).to_contain_text("587 of 600 steps applied (97.8 %)")


def test_step_2_what_is_the_scale_doing(on_run: Reader) -> None:
    """The scale falls thirteen times and never grows, with more than 20 bits of headroom."""
    caption = _look_at(on_run, "scale")
    assert "8 = 2³ after step 599" in caption
    assert "0 growths, 13 back-offs" in caption
    room = re.search(r"Headroom at the newest samples?: ([\d.]+) bits", caption)
    assert room is not None
    assert float(room[1]) > 20


def test_step_3_which_steps_were_lost_and_to_which_layer(on_run: Reader) -> None:
    """Each row names `middle.weight` first and never `head`; clicking a row moves the charts to its steps."""
    on_run.tab("skips")
    rows = on_run.page.locator("[data-ledger=skips] tbody tr")
    expect(rows.first).to_contain_text("middle.weight")
    for row in rows.all():
        names = row.locator("code").all_inner_texts()
        assert names[0] == "middle.weight"
        assert not [name for name in names if name.startswith("head")]
    rows.first.locator("td").first.click()  # a name would open its parameter
    on_run.wait("its steps", lambda: "start=" in on_run.page.url)
    _look_at(on_run, "scale")

    def stretch() -> bool:
        low, high = on_run.range()
        return bool(low < 32 < high and high - low < 100)

    on_run.wait("the stretch", stretch)
    on_run.page.keyboard.press("0")
    on_run.wait("the whole run", lambda: on_run.range()[1] > 590)


def test_step_4_how_much_fp16_throws_away(on_run: Reader) -> None:
    """About 15 % are subnormal, the heatmap reaches below fp16's window, and `stem` has the largest share."""
    share = re.search(r"([\d.]+) % subnormal", _look_at(on_run, "underflow"))
    assert share is not None
    assert 5 < float(share[1]) < 35  # depends on the newest sample, which depends on timing
    assert "2⁻²⁷" in _look_at(on_run, "exponents")
    slider = on_run.page.get_by_role("slider", name="Loss scale to preview")
    subnormal = {}
    for power in ("16", "-2"):
        slider.fill(power)
        share = re.search(r"Subnormal\n([\d.]+) %", on_run.text(".shares"))
        assert share is not None
        subnormal[power] = float(share[1])
    assert subnormal["16"] < 5
    assert subnormal["-2"] > 50
    on_run.page.get_by_role("button", name="Show recorded scale").click()
    on_run.tab("gradients")
    _look_at(on_run, "parameters")
    rows = on_run.page.locator("[data-ledger=parameters] tbody tr")
    expect(rows.first).to_contain_text("stem.weight")


def test_step_5_what_another_scale_would_do(on_run: Reader) -> None:
    """At 2^16 the page predicts fewer subnormal values than today, and no overflow."""
    on_run.tab("whatif")
    _look_at(on_run, "whatif")
    slider = on_run.page.get_by_role("slider", name="Scale to try")
    slider.fill("16")
    slider.dispatch_event("change")
    sentence = on_run.page.locator(".whatif .sentence")
    expect(sentence).to_contain_text("At 2¹⁶")
    words = on_run.text(".whatif .sentence")
    then, today = (float(each) for each in re.findall(r"([\d.]+) % subnormal", words))
    assert then < 0.75 * today
    expect(sentence).to_contain_text("no overflow")


def test_step_6_which_one_to_write(on_run: Reader) -> None:
    """One change is recommended, `middle` in fp32; a scale that the reader tries is an alternative, with its code."""
    fixes = on_run.page.locator(".finding .code")
    assert fixes.first.locator("p").text_content() == "Recommended:"
    assert fixes.first.locator("code").text_content().startswith("with torch.autocast(")
    assert fixes.nth(1).locator("p").text_content().startswith("Alternative, because")
    on_run.tab("whatif")
    _look_at(on_run, "whatif")
    part = on_run.page.locator(".part.whatif .code")
    expect(part).to_contain_text("Alternative: the findings recommend another change")
    expect(part).to_contain_text('GradScaler("cpu", init_scale=')
    simulator = on_run.page.locator(".part.simulate")
    simulator.scroll_into_view_if_needed()
    expect(simulator).to_contain_text("13 skips in 600 steps, as recorded")


def test_a_real_training_is_whole_in_every_view(on_run: Reader, run_id: str) -> None:
    """Every view of a real fp16 training is drawn completely: all tabs on a desktop, one on a phone."""
    reader = on_run
    reader.open(NOWHERE)
    reader.theme("dark")
    for view, width, tabs in (
        ("?x=time&parameter=middle.weight", 1440, (*TABS[1:], TABS[0])),
        ("", 390, TABS[:1]),
    ):
        reader.size(width, ALL_OF_IT)
        reader.open(f"#/runs/{run_id}{view}")
        for tab in tabs:
            reader.tab(tab)
            settle(reader)
            assert faults(reader.page) == []
        for name in CHARTS:
            assert reader.figure(name).locator(".main-svg").first.is_visible()


def test_every_step_of_the_walk_is_a_test() -> None:
    """The tests above have the same numbers as the document's steps."""
    steps = re.findall(r"^## (\d+)\.", WALK.read_text(), re.MULTILINE)
    tests = [name.split("_")[2] for name in globals() if name.startswith("test_step_")]
    assert steps == tests
    assert len(steps) == 6
