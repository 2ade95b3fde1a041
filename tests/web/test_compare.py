"""Several runs side by side, in a browser."""

from __future__ import annotations

from playwright.sync_api import expect

from posted import PostedRun
from web.reader import Reader


def test_runs_are_compared_on_one_axis(reader: Reader) -> None:
    """All runs have their lines, a zoom moves every chart and the address, and one that is gone is said to be."""
    runs = [PostedRun(reader.server, f"compared {k}", config={"lr": k, "depth": 3}) for k in (1, 2)]
    for run in runs:
        run.updates(60)
        run.updates(skipped=True)
    ids = ",".join(str(run.run_id) for run in runs)
    gone = "01900000-0000-7000-8000-000000000000"
    reader.open(f"#/compare?runs={ids},{gone}")
    reader.wait("the lines", lambda: reader.plot("scale", "plot.data.length") == 2)
    reader.wait("the facts", lambda: reader.texts(".facts"))
    reader.wait("who is gone", lambda: "1 run is not there" in reader.text(".notices"))
    reader.wait("what differs", lambda: reader.texts(".marked tbody th") == ["config.lr"])
    reader.page.get_by_label("identical field").check()
    assert "config.depth" in reader.texts(".marked tbody th")

    reader.figure("scale").scroll_into_view_if_needed()
    reader.drag(-200, 100)
    reader.wait("the address", lambda: "start=" in reader.page.url)
    reader.figure("skips").scroll_into_view_if_needed()
    reader.wait("the other chart", lambda: reader.range("skips") == reader.range())
    reader.page.get_by_role("button", name="Remove This run is not there").click()
    expect(reader.page.get_by_role("heading", name="Compare 2 runs")).to_be_visible()
    assert "start=" in reader.page.url
