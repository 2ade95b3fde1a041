"""Common tasks, done from the first page."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Locator

from posted import PostedRun
from web.reader import Reader


CLICKS_MAX = 4


def test_what_people_come_for_takes_at_most_four_clicks(reader: Reader) -> None:
    """At most four clicks lead to the first layer to overflow, the loss at the third skip, or three runs' losses."""
    page = reader.page
    losses = {"healthy": 0.25, "skipping": 0.75, "diverged": 40.0}
    for name, last in losses.items():
        run = PostedRun(reader.server, name)
        for skip in range(3 if name == "skipping" else 0):
            run.logs({"loss": 2.0 - 0.01 * step} for step in range(20))
            run.logs([{"loss": 5.0 + skip}], skipped=True)
        run.logs({"loss": last + 0.5 / step} for step in range(1, 60))
    clicks = 0

    def click(what: Locator) -> None:
        nonlocal clicks
        clicks += 1
        what.click()

    def begin() -> Callable[[str], Locator]:
        nonlocal clicks
        clicks = 0
        reader.open()
        return lambda name: page.get_by_role("link", name=name, exact=True)

    run_called = begin()
    click(run_called("skipping"))
    click(page.get_by_role("tab", name="Skipped steps"))
    first = "[data-ledger=skips] tbody td[data-name='First to overflow']"
    reader.wait(
        "the layer", lambda: reader.texts(first) and "head.weight" in reader.texts(first)[0]
    )
    assert clicks <= CLICKS_MAX

    run_called = begin()
    click(run_called("skipping"))
    click(page.get_by_role("tab", name="Skipped steps"))
    click(page.locator("[data-ledger=skips] tbody tr").first.locator("td").first)
    read = "[data-figure=scalars] .readout > *"
    reader.wait("the loss", lambda: reader.texts(read) == ["step 62", "7"])
    assert clicks <= CLICKS_MAX

    begin()
    for name in losses:
        click(page.get_by_label(f"Select {name}"))
    click(page.get_by_role("link", name="Compare", exact=True))
    shown = "loss (last)\t0.258475\t0.758475\t40.0085"
    reader.wait("their losses side by side", lambda: shown in reader.text(".facts"))
    assert clicks <= CLICKS_MAX
