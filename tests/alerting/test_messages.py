"""The text of a message, and the removal of markup and mentions from names in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ampmon.wire import Finding
from ampmon_server.alerting.machine import Alert
from ampmon_server.alerting.messages import Found, Subject, message, plain, together


SUBJECT = Subject("0198-run", "vision", "run-7", "ada")
FINDING = Finding(
    rule="silent",
    severity="warning",
    title="No record for 5 min",
    explanation="",
    parameters=("head.weight", "body.weight"),
    first_step=49,
    last_step=90,
    evidence={"rank": 3},
)
ALERT = Alert(
    state="firing", severity="warning", since=1_790_000_000_000_000, fired=1_790_000_120_000_000
)
URL = "https://ampmon.example.org"


def test_a_message_names_all_that_matters() -> None:
    """A message names the run, its owner, the finding, the culprit, the first silent rank, the steps and a link."""
    built = message(SUBJECT, Found.of(FINDING), ALERT, "firing", URL)

    assert built.title == "ampmon warning: run-7: No record for 5 min"
    assert built.kind == "warning"
    assert built.body.splitlines() == [
        "Run: run-7 in vision, of ada",
        "Found: No record for 5 min (warning)",
        "Since 2026-09-21 14:13 UTC, by the server's clock",
        "Culprit: head.weight",
        "First silent rank: 3",
        "Steps 49 – 90",
        f"{URL}/#/runs/0198-run?start=49&stop=91",
    ]


def test_ends_and_worse_alerts_are_labelled() -> None:
    """A message about the end has both times, and without a public URL it has the run's id."""
    over = replace(ALERT, state="resolved", resolved=ALERT.since + 600_000_000)
    end = message(SUBJECT, Found(title="gone"), over, "resolved", None)
    worse = message(SUBJECT, Found(title="bad"), replace(ALERT, severity="critical"), "worse", URL)

    assert (end.title, end.kind) == ("ampmon resolved: run-7: gone", "success")
    assert "From 2026-09-21 14:13 UTC to 2026-09-21 14:23 UTC" in end.body
    assert end.body.endswith("Run id: 0198-run")
    assert (worse.title, worse.kind) == ("ampmon critical now: run-7: bad", "failure")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("run\nBcc: all@example.org", "run Bcc: all@\u200bexample.org"),
        ("<!channel> @everyone", "‹!channel› @\u200beveryone"),
        ("a\u202eb\x1b[31mc", "a b [31mc"),
        ("x" * 1000, "x" * 299 + "…"),
        ("2\u202f000 updates", "2 000 updates"),
        ("[sign in](https://example.org)", "[sign in] (https://example.org)"),
    ],
)
def test_names_command_nobody(given: str, expected: str) -> None:
    """Names in a message lose newlines, mentions, markup, text direction and escapes, and are cut to 300 characters."""
    assert plain(given) == expected
    subject = Subject("id", given, given, given)
    assert "\n" not in message(subject, Found(title=given), ALERT, "firing", None).title


def test_many_alerts_are_sent_together() -> None:
    """A combined message has the number of held-back alerts and names the first ten."""
    summary = together([f"alert {number}" for number in range(13)], 5, URL)

    assert summary.title == "ampmon: 13 alerts were held back"
    assert "- alert 9\nand 3 more" in summary.body


def test_many_long_ones_together_are_refused_by_no_service() -> None:
    """A combined message of long titles has at most 1024 characters with its own title, PagerDuty's limit."""
    message = together(["long" * 100] * 13, 5, URL)

    assert len(f"{message.title}\r\n{message.body}") <= 1024
