"""The state machine of an alert: which notifications follow from the findings, and how many."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from ampmon_server.alerting.machine import Alert, AlertStep, step
from ampmon_server.alerting.targets import After, AlertPolicy
from ampmon_server.model.thresholds import RANKS


MINUTE = 60_000_000
AFTER = {"notice": 10 * MINUTE, "warning": 2 * MINUTE, "critical": 0}
COOL_DOWN = 15 * MINUTE
POLICY = AlertPolicy(after_s=After(notice=600, warning=120, critical=0), cool_down_s=900)
FOUND = st.sampled_from([None, "notice", "warning", "critical"])
LOOKS = st.lists(st.tuples(FOUND, st.integers(0, 20 * MINUTE), st.booleans()), max_size=60)
"""(severity found, microseconds since the previous observation, muted)."""


def walked(looks, policy=POLICY, start=1_000 * MINUTE) -> list[tuple[int, Alert | None, AlertStep]]:
    """For each observation: its time, the alert before it and the step it caused."""
    alert, now, steps = None, start, []
    for found, later, muted in looks:
        now += later
        made = step(alert, found, now, policy, muted=muted)
        steps.append((now, alert, made))
        alert = made.alert
    return steps


@given(LOOKS)
@example([(found, 3 * MINUTE, False) for found in ("warning", "warning", "critical", None)])
def test_a_firing_alert_is_sent_once(looks) -> None:
    """A firing alert is not sent again before its end, unless it gets worse. Only an alert that was sent resolves."""
    firing = None
    for _, _, made in walked(looks):
        if made.event == "firing":
            assert firing is None
        elif made.event == "worse":
            assert RANKS[made.alert.severity] < RANKS[firing]
        elif made.event == "resolved":
            assert firing is not None
        if made.event is not None:
            firing = None if made.event == "resolved" else made.alert.severity


@given(LOOKS)
def test_whoever_got_an_alert_learns_of_the_end(looks) -> None:
    """After an observation without mute and finding, everybody who got an alert has got its end too."""
    notified = False
    for (found, _, muted), (_, _, made) in zip(looks, walked(looks), strict=True):
        if made.event is not None:
            notified = made.event != "resolved"
        if found is None and not muted:
            assert not notified


@given(LOOKS)
def test_an_alert_is_sent_with_its_severity(looks) -> None:
    """After an observation without mute, a firing alert has been sent with its current severity."""
    sent = None
    for (*_, muted), (_, _, made) in zip(looks, walked(looks), strict=True):
        if made.event is not None:
            sent = made.alert.severity
        if made.alert is not None and made.alert.state == "firing" and not muted:
            assert (sent, made.alert.heard) == (made.alert.severity, True)


@given(LOOKS)
def test_nothing_is_sent_while_it_cools_down(looks) -> None:
    """An alert fires only after its finding has lasted long enough, and only after the cool-down of its last end."""
    ended = None
    for now, before, made in walked(looks):
        fires = made.alert is not None and made.alert.fired == now and made.alert.state == "firing"
        if fires and (before is None or before.state != "firing"):
            assert now - made.alert.since >= AFTER[made.alert.severity]
            assert ended is None or now - ended >= COOL_DOWN
        if made.alert is not None and made.alert.resolved == now:
            ended = now


@given(st.lists(st.tuples(FOUND, st.integers(0, MINUTE), st.just(False)), max_size=300))
def test_a_flapping_alert_is_sent_a_few_times_an_hour(looks) -> None:
    """A flapping finding sends at most five notifications within a cool-down."""
    times = [now for now, _, made in walked(looks) if made.event]
    for first in times:
        assert sum(first <= each < first + COOL_DOWN for each in times) <= 5


@given(LOOKS)
def test_what_went_away_tells_nobody(looks) -> None:
    """A pending alert that goes away sends nothing, and is deleted only if it never fired."""
    for _, before, made in walked(looks):
        if before is not None and before.state == "pending" and made.alert != before:
            if made.alert is None or made.alert.state == "resolved":
                assert made.event is None
            if made.alert is None:
                assert before.fired is None


@given(LOOKS, st.integers(1, 10**15))
def test_only_differences_of_times_count(looks, later) -> None:
    """The same observations at another time send the same notifications."""
    one, other = walked(looks), walked(looks, start=1_000 * MINUTE + later)
    assert [made.event for *_, made in one] == [made.event for *_, made in other]


@given(LOOKS, st.integers(0, 10**13))
def test_a_clock_that_goes_back_tells_nothing_more(looks, back) -> None:
    """An observation with an earlier time sends nothing that it would not send at the last time."""
    steps = walked(looks)
    if steps and steps[-1][2].alert is not None:
        now, _, made = steps[-1]
        for found in (None, "warning", "critical"):
            early = step(made.alert, found, now - back, POLICY)
            late = step(made.alert, found, now, POLICY)
            assert early.event is None or early.event == late.event


@given(LOOKS)
def test_what_is_pending_says_when_to_look_again(looks) -> None:
    """A pending alert fires at its due time and not before."""
    for now, _, made in walked(looks):
        if made.alert is None or made.alert.state != "pending":
            assert made.due is None
            continue
        assert made.due > now
        severity = made.alert.severity
        assert step(made.alert, severity, made.due - 1, POLICY).alert.state == "pending"
        assert step(made.alert, severity, made.due, POLICY).event == "firing"


def test_a_muted_alert_is_sent_once_unmuted() -> None:
    """An alert that fired while muted is sent at the first observation after the mute, or never if it ends before."""
    (_, _, fired), (_, _, heard) = walked([("critical", 0, True), ("critical", MINUTE, False)])
    (_, _, muted), (_, _, over) = walked([("critical", 0, True), (None, MINUTE, False)])

    assert (fired.alert.state, fired.event, heard.event) == ("firing", None, "firing")
    assert (muted.alert.state, over.alert.state, over.event) == ("firing", "resolved", None)


def test_an_alert_that_got_worse_is_sent_once_unmuted() -> None:
    """An alert that got worse while muted is sent as worse after the mute, and its end is sent too."""
    looks = [("warning", 0, False), ("warning", 2 * MINUTE, False), ("critical", MINUTE, True)]
    *_, (_, _, worse), (_, _, heard), (_, _, again) = walked([*looks, *[("warning", 1, False)] * 2])
    *_, (_, _, over) = walked([*looks, (None, MINUTE, False)])

    assert (worse.event, heard.event, heard.alert.severity) == (None, "worse", "critical")
    assert (again.event, over.event) == (None, "resolved")


def test_an_end_is_sent_once_unmuted() -> None:
    """The end of an alert that was sent follows the mute, once. If the finding is back by then, it goes on firing."""
    looks = [("critical", 0, False), (None, MINUTE, True), (None, MINUTE, True)]
    *_, (_, ended, over), (_, _, again) = walked([*looks, *[(None, MINUTE, False)] * 2])
    *_, (_, _, back), (_, _, later) = walked([*looks, *[("critical", MINUTE, False)] * 2])

    assert (ended.state, over.event, again.event) == ("resolved", "resolved", None)
    assert over.alert.resolved == ended.resolved
    assert (back.alert.state, back.event, later.event) == ("firing", None, None)
    assert back.alert.since == ended.since


def test_what_gets_worse_is_nobodys_again() -> None:
    """An acknowledgement holds until the alert gets worse."""
    alert = Alert(
        state="firing",
        severity="warning",
        since=0,
        fired=0,
        told=0,
        acknowledged=1,
        acknowledged_by="ada",
    )
    assert step(alert, "notice", 5, POLICY) == AlertStep(alert)
    worse = step(alert, "critical", 5, POLICY)
    assert (worse.event, worse.alert.acknowledged, worse.alert.acknowledged_by) == (
        "worse",
        None,
        None,
    )
