"""What the page says is wrong with a run, in a real browser: in a word, why, and what to write instead."""

from __future__ import annotations

from posted import PostedRun
from web.reader import Reader


FIRST = ".finding:first-child"


def test_a_run_says_what_is_wrong_with_it(own_reader: Reader) -> None:
    """A run is healthy until it is not: then the worst finding stands open, with reason, code, steps and its page."""
    reader = own_reader  # of a server with one run: it looks at all that are running in turn
    run = PostedRun(reader.server)
    run.updates(40)
    reader.show(run)
    reader.wait("the verdict", lambda: reader.text(".state .verdict") == "✓\nhealthy")
    assert reader.texts(".finding") == []

    for _ in range(5):
        run.updates(9)
        run.updates(skipped=True)
    reader.wait("the verdict", lambda: reader.text(".state .verdict") == "▲\nwarning")
    finding = reader.server.get(f"{run.path}/diagnosis")["findings"][0]
    reader.wait("all five skips", lambda: finding["title"] in reader.text(FIRST))
    shown = reader.text(FIRST)
    for part in ("severity", "title", "explanation", "fix"):
        assert finding[part] in shown
    assert reader.ask(f"document.querySelector('{FIRST} a').pathname") == "/findings/culprit_layer"

    reader.page.click(f"{FIRST} summary")
    assert finding["explanation"] not in reader.text(FIRST)
    run.updates(skipped=True)
    reader.wait("new numbers", lambda: "6 of 6 skips" in reader.text(FIRST))
    assert finding["explanation"] not in reader.text(FIRST)
    reader.page.click(f"{FIRST} summary")

    reader.page.click(f"{FIRST} .ways button:first-child")
    reader.wait("word of the copy", lambda: reader.text(f"{FIRST} .ways button") != "Copy the code")
    reader.page.click(f"{FIRST} .ways button:nth-child(2)")
    reader.wait("the steps", lambda: "start=49&stop=91" in reader.ask("location.hash"))
    reader.wait("the charts", lambda: reader.text(".where") == "Showing steps 49 – 90")

    reader.open()
    cell = "table.runs td[data-name=Diagnosis]"
    reader.wait(
        "the worst in words", lambda: reader.text(cell).startswith("▲\nhead.weight is the first")
    )
