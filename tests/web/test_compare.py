"""Comparison of several runs in a browser."""

from __future__ import annotations

from playwright.sync_api import expect

from posted import PostedRun
from web.layout import faults
from web.reader import Reader


RATES = (0.1, 0.01, 0.001, 0.0001)


def test_runs_are_compared_on_one_axis(reader: Reader) -> None:
    """Each run has its lines, a zoom moves every chart and the address, and a missing run is reported."""
    runs = [PostedRun(reader.server, f"compared {k}", config={"lr": k, "depth": 3}) for k in (1, 2)]
    for run in runs:
        run.updates(60)
        run.updates(skipped=True)
    ids = ",".join(str(run.run_id) for run in runs)
    gone = "01900000-0000-7000-8000-000000000000"
    reader.open(f"#/compare?runs={ids},{gone}")
    reader.wait("the lines", lambda: reader.plot("scale", "plot.data.length") == 2)
    reader.wait("the facts", lambda: reader.texts(".facts"))
    reader.wait("who is gone", lambda: "1 run not found" in reader.text(".notices"))
    made = ".marked tbody th"
    reader.wait("what differs", lambda: [*filter(None, reader.texts(made))] == ["config.lr"])
    reader.page.get_by_label("identical field").check()
    assert "config.depth" in reader.texts(made)

    reader.figure("scale").scroll_into_view_if_needed()
    reader.drag(-200, 100)
    reader.wait("the address", lambda: "start=" in reader.page.url)
    reader.figure("skips").scroll_into_view_if_needed()
    reader.wait("the other chart", lambda: reader.range("skips") == reader.range())
    reader.page.get_by_role("button", name="Remove Run not found").click()
    expect(reader.page.get_by_role("heading", name="Compare 2 runs")).to_be_visible()
    assert "start=" in reader.page.url


def test_a_run_is_added_and_made_the_baseline_on_the_page(reader: Reader) -> None:
    """A run can be added and made the baseline. The others then show where their loss leaves its band."""
    runs = [PostedRun(reader.server, f"distant {name}") for name in ("one", "two", "base")]
    for index, run in enumerate(runs):
        losses = [1 + 0.01 * (step % 7) + (step >= 60 and index == 1) for step in range(120)]
        run.logs({"loss": loss} for loss in losses)
    one, two, base = (str(run.run_id) for run in runs)
    reader.open(f"#/compare?runs={one},{two}")
    reader.wait("the runs", lambda: len(reader.texts(".compared li")) == 2)
    reader.page.get_by_label("Add a run").fill("distant base")
    reader.page.get_by_role("button", name="distant base · tests").click()
    reader.wait("the address", lambda: reader.page.url.endswith(f"runs={one},{two},{base}"))
    reader.page.get_by_role("button", name="Baseline: distant base").click()
    reader.wait("the address", lambda: reader.page.url.endswith(f"baseline={base}"))
    reader.wait("the band", lambda: reader.plot("logged", "plot.data.length") == 5)
    words = "loss above the band from step 60: scale 65 536 = 2¹⁶, 0 skipped steps before"
    reader.wait("the distance", lambda: words in reader.text(".compared").replace("\u202f", " "))
    assert "loss stays within the band, to step 119" in reader.text(".compared")

    reader.page.get_by_label("Smoothing").select_option("median of 5 columns")
    reader.wait("the address", lambda: "smooth=5" in reader.page.url)
    reader.wait("the caption", lambda: "running median of 5 columns" in reader.caption("logged"))
    reader.page.get_by_role("button", name="Baseline: distant base").click()
    reader.wait("no band", lambda: reader.plot("logged", "plot.data.length") == 6)
    assert "baseline" not in reader.page.url


def test_the_values_of_every_run_are_read_at_the_pointer(reader: Reader) -> None:
    """The row above a chart has room for the values of all runs at a step, on a phone too, and no chart moves."""
    runs = [PostedRun(reader.server, f"read {number} of nine") for number in range(9)]
    for number, run in enumerate(runs):
        run.logs({"loss": number + 1 / (1 + step)} for step in range(40))
    row = "document.querySelector('[data-figure=logged] .readout')"
    for width in (1440, 390):
        reader.size(width, 900)
        reader.open(f"#/compare?runs={','.join(str(run.run_id) for run in runs)}")
        # The list of runs is above the charts, and comes by itself.
        reader.wait("the runs", lambda: len(reader.texts(".compared li")) == len(runs))
        reader.wait("the lines", lambda: reader.scrolled_to("logged"))
        plot = reader.figure("logged").locator(".plot")
        reader.catch_up()
        before = plot.bounding_box()
        assert before is not None
        reader.page.mouse.move(before["x"] + before["width"] * 0.4, before["y"] + 100)
        read = "[data-figure=logged] .readout > *"
        reader.wait("the step", lambda read=read: reader.text(read).startswith("step"))
        assert len(reader.texts(read)) == 1 + len(runs)
        assert reader.ask(f"{row}.scrollHeight <= {row}.clientHeight")
        assert plot.bounding_box() == before
        reader.page.mouse.move(0, 0)


def test_runs_that_are_all_gone_are_said_to_be(reader: Reader) -> None:
    """A comparison of runs that were all deleted does not promise to compare the others."""
    reader.ignore_page_errors("status of 404")
    gone = ",".join(f"01900000-0000-7000-8000-00000000000{each}" for each in range(2))
    known = PostedRun(reader.server)
    known.updates(1)
    reader.open(f"#/compare?runs={known.run_id},{gone}")
    others = "deleted, or never reported to this server. The page compares the others."
    reader.wait("the others", lambda: reader.text(".notices") == f"2 runs not found: {others}")
    reader.server.request("DELETE", f"/api/v1{known.path}")
    none = "3 runs not found: deleted, or never reported to this server."
    reader.wait("that none is left", lambda: reader.text(".notices") == none)


def test_the_headings_of_a_sweep_are_told_apart(passer_by: Reader) -> None:
    """Long names that differ in the middle have different headings, and no heading is cut off."""
    reader = passer_by
    runs = [
        PostedRun(reader.server, f"sweep lr={rate} with the large batch of 4096") for rate in RATES
    ]
    for run in runs:
        run.updates(2)
    reader.open(f"#/compare?runs={','.join(str(run.run_id) for run in runs)}")
    headings = ".facts:not(.marked) thead th"
    reader.wait("the headings", lambda: len({*reader.texts(headings)}) == len(RATES))
    assert faults(reader.page) == []


def test_a_run_outside_git_has_a_dash_for_its_commit(reader: Reader) -> None:
    """A fact that is an empty text is shown as a dash, like one that is not known."""
    runs = [PostedRun(reader.server, "of a commit", git_commit=commit) for commit in ("6f1c", "")]
    reader.open(f"#/compare?runs={','.join(str(run.run_id) for run in runs)}")
    row = reader.page.locator(
        ".marked tr", has=reader.page.get_by_role("rowheader", name="git_commit")
    )
    expect(row.locator("td")).to_have_text(["6f1c", "–"])
