"""Alerts on the page in a real browser: their state, failed deliveries, and what a reader can do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from posted import PostedRun
from receiver import receiving, written
from serving import Server
from web.axe import violations
from web.layout import faults
from web.reader import Reader, light


FIRST = "[data-rule=culprit_layer]"
ALERT = f"{FIRST} .alert"
ROWS = {name: f"[data-ledger^='{name}'] tbody tr" for name in ("Firing", "Failed", "Muted", "Sent")}
SECRET = "hunter2"
"""Part of each target's URL."""


@pytest.fixture(scope="module")
def alerting(own_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that alerts two targets, one of which refuses."""
    folder = tmp_path_factory.mktemp("alerting")
    with receiving() as phone, receiving() as chat:
        chat.answer = 500
        targets = "".join(
            f'[[targets]]\nname = "{name}"\nurl = "json://user:{SECRET}@{each.netloc}/x"\n'
            for name, each in (("phone", phone), ("chat", chat))
        )
        text = f"allow_private = true\n{targets}[policy.after_s]\nwarning = 0\n"
        file = written(folder / "alerts.toml", text)
        options = ["--alerts", str(file)]
        with Server(folder / "ampmon", port=own_port, options=options) as server:
            yield server


def failing(server: Server) -> PostedRun:
    """A run with a firing alert."""
    run = PostedRun(server, "<b>run</b> 7")
    run.updates(40)
    for _ in range(5):
        run.updates(9)
        run.updates(skipped=True)
    return run


def test_an_alert_is_seen_and_taken_care_of(
    alerting: Server, new_reader: Callable[[Server], Reader]
) -> None:
    """An alert shows its deliveries and failures, is acknowledged, muted and unmuted, marks the list, and resolves."""
    reader, run = new_reader(alerting), failing(alerting)
    light(reader.page)
    reader.arrive(run)
    reader.wait("a mark that it fires", lambda: reader.text(".findings > summary .alarm"))
    reader.unfold_findings()
    reader.wait("the targets", lambda: "sent to phone" in reader.text(f"{ALERT} .standing"))
    reader.wait(
        "the failed target", lambda: "refused the message (500)" in reader.text(f"{ALERT} .why")
    )
    assert reader.text(f"{ALERT} .standing").startswith("Firing since ")
    assert reader.text(f"{ALERT} .why").startswith("Not delivered to chat: ")
    assert reader.text(f"{FIRST} .alarm") == "firing"

    reader.open()
    reader.wait("the mark", lambda: reader.text("table.runs .firing") == "◉")
    reader.page.get_by_role("link", name="Alerts", exact=True).click()
    _have_a_page(reader)
    reader.page.locator(f"{ROWS['Firing']}:first-child").get_by_role("link").click()
    reader.wait("the run", lambda: run.path in reader.page.url and reader.text(".answer"))

    reader.unfold_findings()
    reader.wait("the alert", lambda: reader.text(f"{FIRST} .alarm"))
    reader.page.click(f"{ALERT} button:has-text('Acknowledge')")
    reader.wait(
        "the user", lambda: "acknowledged by the operator" in reader.text(f"{ALERT} .standing")
    )
    assert reader.text(f"{FIRST} .alarm") == "acknowledged"
    reader.page.select_option(f"{ALERT} select", label="for 1 hour")
    reader.wait("the mute", lambda: "muted until" in reader.text(f"{ALERT} .standing"))
    (mute,) = alerting.get("/mutes")["mutes"]
    assert (mute["run_id"], mute["rule"]) == (str(run.run_id), "culprit_layer")
    reader.page.click(f"{ALERT} button:has-text('Unmute')")
    reader.wait("no mute", lambda: "muted" not in reader.text(f"{ALERT} .standing"))

    run.event("finish")
    reader.wait("the end", lambda: "Resolved at" in reader.text(f"{ALERT} .standing"))
    assert reader.text(f"{FIRST} .alarm") == ""


def _have_a_page(reader: Reader) -> None:
    """The page of alerts lists firing, failed, muted and sent ones, can mute and unmute, and shows no secret."""
    reader.wait("what fires", lambda: "sent to phone" in reader.text(ROWS["Firing"]))
    assert "head.weight is the first to overflow" in reader.text(ROWS["Firing"])
    reader.wait("what failed", lambda: "refused the message (500)" in reader.text(ROWS["Failed"]))
    assert reader.text(f"{ROWS['Failed']} [data-name=Destination]") == "chat"
    assert int(reader.text(f"{ROWS['Failed']} [data-name=Attempts]")) >= 1
    assert re.search(r"\d:\d\d", reader.text(f"{ROWS['Failed']} [data-name='Next attempt']"))
    assert reader.text(f"{ROWS['Sent']} [data-name=Destination]") == "phone"
    assert "<b>run</b> 7 in tests" in reader.text(f"{ROWS['Sent']} [data-name=Run]")

    reader.page.select_option(f"{ROWS['Firing']}:first-child select", label="for 1 hour")
    reader.wait("the mute", lambda: "<b>run</b> 7" in reader.text(ROWS["Muted"]))
    assert reader.text(f"{ROWS['Muted']} [data-name='Muted by']") == "the operator"
    assert SECRET not in reader.page.content()
    assert reader.texts("h1") == ["Alerts"]
    reader.theme("dark")
    reader.size(390)
    assert violations(reader.page) == []
    assert faults(reader.page) == []
    reader.page.locator(ROWS["Muted"]).get_by_role("button", name="Unmute").click()
    reader.wait("no mute", lambda: "Nothing is muted." in reader.text("main"))


def test_without_alerts_their_page_says_how_to_get_some(reader: Reader) -> None:
    """Without alerts, their page names the command that enables them and links to the documentation."""
    reader.open("#/alerts")
    reader.wait("the words", lambda: "This server sends no alerts." in reader.text("main"))
    assert "ampmon serve --alerts alerts.toml" in reader.text("main")
    more = reader.page.get_by_role("link", name="Learn more").evaluate("link => link.href")
    answer = reader.page.context.request.get(more)
    assert (answer.status, "<h1" in answer.text()) == (200, True)
