"""Alerts on the page, in a real browser: how they stand, who was not told, and what a reader does about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from posted import PostedRun
from receiver import receiving, written
from serving import Server
from web.axe import violations
from web.reader import Reader


FIRST = "[data-rule=culprit_layer]"
ALERT = f"{FIRST} .alert"


@pytest.fixture
def told(own_port: int, new_server: Callable[..., Server], tmp_path: Path) -> Iterator[Server]:
    """A server that tells two targets, of which one refuses."""
    with receiving() as phone, receiving() as chat:
        chat.answer = 500
        targets = "".join(
            f'[[targets]]\nname = "{name}"\nurl = "json://{each.place}/x"\n'
            for name, each in (("phone", phone), ("chat", chat))
        )
        text = f"allow_private = true\n{targets}[policy.after_s]\nwarning = 0\n"
        file = written(tmp_path / "alerts.toml", text)
        yield new_server(port=own_port, options=["--alerts", str(file)])


def test_an_alert_is_seen_and_taken_care_of(
    told: Server, new_reader: Callable[[Server], Reader]
) -> None:
    """It says since when it fires, who was told and who not; it is acknowledged, muted, unmuted, and marks the list."""
    reader, run = new_reader(told), PostedRun(told)
    run.updates(40)
    for _ in range(5):
        run.updates(9)
        run.updates(skipped=True)
    reader.show(run)
    reader.wait("a mark that it fires", lambda: reader.text(".findings > summary .alarm"))
    reader.page.click(".answer")
    reader.wait("who was told", lambda: "told phone" in reader.text(f"{ALERT} .standing"))
    reader.wait("who was not", lambda: "refused the message (500)" in reader.text(f"{ALERT} .why"))
    assert reader.text(f"{ALERT} .standing").startswith("Firing since ")
    assert reader.text(f"{ALERT} .why").startswith("Not delivered to chat: ")
    assert reader.text(f"{FIRST} .alarm") == "firing"
    assert violations(reader.page, FIRST) == []

    reader.open()
    reader.wait("the mark", lambda: reader.text("table.runs .firing") == "◉")
    reader.open(f"#{run.path}")
    reader.page.click(".answer")
    reader.wait("the alert", lambda: reader.text(f"{FIRST} .alarm"))
    reader.page.click(f"{ALERT} button:has-text('Acknowledge')")
    reader.wait("who", lambda: "the operator looks after it" in reader.text(f"{ALERT} .standing"))
    assert reader.text(f"{FIRST} .alarm") == "acknowledged"
    reader.page.select_option(f"{ALERT} select", label="for 1 hour")
    reader.wait("the mute", lambda: "muted until" in reader.text(f"{ALERT} .standing"))
    (mute,) = told.get("/mutes")["mutes"]
    assert (mute["run_id"], mute["rule"]) == (str(run.run_id), "culprit_layer")
    reader.page.click(f"{ALERT} button:has-text('Unmute')")
    reader.wait("no mute", lambda: "muted" not in reader.text(f"{ALERT} .standing"))

    run.event("finish")
    reader.wait("the end", lambda: "Over since" in reader.text(f"{ALERT} .standing"))
    assert reader.text(f"{FIRST} .alarm") == ""
