"""The states of an alert, whatever comes: what is told follows from what was found, and is never much."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ampmon_server.alerting.machine import Alert, AlertStep, Patience, step
from ampmon_server.model.severities import RANKS


MINUTE = 60_000_000
PATIENCE = Patience(
    after={"notice": 10 * MINUTE, "warning": 2 * MINUTE, "critical": 0}, cool_down=15 * MINUTE
)
FOUND = st.sampled_from([None, "notice", "warning", "critical"])
LOOKS = st.lists(st.tuples(FOUND, st.integers(0, 20 * MINUTE), st.booleans()), max_size=60)
"""What is found, how much later, and whether it is muted."""


def walked(
    looks, patience=PATIENCE, start=1_000 * MINUTE
) -> list[tuple[int, Alert | None, AlertStep]]:
    """Each look's time, what stood before it, and what came of it."""
    alert, now, steps = None, start, []
    for found, later, muted in looks:
        now += later
        made = step(alert, found, now, patience, muted=muted)
        steps.append((now, alert, made))
        alert = made.alert
    return steps


@given(LOOKS)
def test_what_fires_is_told_once(looks) -> None:
    """Between two tellings that it fires is one that it is over, unless it got worse; what ends was told before."""
    firing = None
    for _, _, made in walked(looks):
        if made.event == "firing":
            assert firing is None
        elif made.event == "worse":
            assert RANKS[made.alert.severity] < RANKS[firing]
        elif made.event == "resolved":
            assert firing is not None
        if made.alert is None or made.alert.state == "resolved":
            firing = None  # told, unless it is muted
        elif made.event is not None:
            firing = made.alert.severity


@given(LOOKS)
def test_whoever_may_be_told_knows_how_bad_it_is(looks) -> None:
    """What fires after a look that is not muted was told at the severity that it has."""
    told = None
    for (*_, muted), (_, _, made) in zip(looks, walked(looks), strict=True):
        if made.event is not None:
            told = made.alert.severity
        if made.alert is not None and made.alert.state == "firing" and not muted:
            assert (told, made.alert.heard) == (made.alert.severity, True)


@given(LOOKS)
def test_nothing_is_told_while_it_cools_down(looks) -> None:
    """After its end an alert does not fire before the cool-down is up, nor before it has been there for long enough."""
    ended = None
    for now, before, made in walked(looks):
        fires = made.alert is not None and made.alert.fired == now and made.alert.state == "firing"
        if fires and (before is None or before.state != "firing"):
            assert now - made.alert.since >= PATIENCE.after[made.alert.severity]
            assert ended is None or now - ended >= PATIENCE.cool_down
        if made.alert is not None and made.alert.resolved == now:
            ended = now


@given(st.lists(st.tuples(FOUND, st.integers(0, MINUTE), st.just(False)), max_size=300))
def test_what_flaps_is_told_a_few_times_an_hour(looks) -> None:
    """However a finding comes and goes, within a cool-down it fires once, gets worse twice and ends twice at most."""
    told = [now for now, _, made in walked(looks) if made.event]
    for first in told:
        assert sum(first <= each < first + PATIENCE.cool_down for each in told) <= 5


@given(LOOKS)
def test_what_went_away_tells_nobody(looks) -> None:
    """What was pending and went away was never told, and is forgotten unless it had fired before."""
    for _, before, made in walked(looks):
        if before is not None and before.state == "pending" and made.alert != before:
            if made.alert is None or made.alert.state == "resolved":
                assert made.event is None
            if made.alert is None:
                assert before.fired is None


@given(LOOKS, st.integers(1, 10**15))
def test_only_differences_of_times_count(looks, later) -> None:
    """The same looks at another time of day tell the same."""
    one, other = walked(looks), walked(looks, start=1_000 * MINUTE + later)
    assert [made.event for *_, made in one] == [made.event for *_, made in other]


@given(LOOKS, st.integers(0, 10**13))
def test_a_clock_that_goes_back_tells_nothing_more(looks, back) -> None:
    """A look with an earlier time than the last tells nothing that the same look at the last one's time would not."""
    steps = walked(looks)
    if steps and steps[-1][2].alert is not None:
        now, _, made = steps[-1]
        for found in (None, "warning", "critical"):
            early = step(made.alert, found, now - back, PATIENCE)
            late = step(made.alert, found, now, PATIENCE)
            assert early.event is None or early.event == late.event


@given(LOOKS)
def test_what_is_pending_says_when_to_look_again(looks) -> None:
    """A look at that time finds it firing, and one before does not."""
    for now, _, made in walked(looks):
        if made.alert is None or made.alert.state != "pending":
            assert made.due is None
            continue
        assert made.due > now
        severity = made.alert.severity
        assert step(made.alert, severity, made.due - 1, PATIENCE).alert.state == "pending"
        assert step(made.alert, severity, made.due, PATIENCE).event == "firing"


def test_what_is_muted_is_told_when_it_is_not_any_more() -> None:
    """An alert that fired unheard is told at the next look after the mute, and its end only to who heard of it."""
    (_, _, fired), (_, _, heard) = walked([("critical", 0, True), ("critical", MINUTE, False)])
    (_, _, muted), (_, _, over) = walked([("critical", 0, True), (None, MINUTE, False)])

    assert (fired.alert.state, fired.event, heard.event) == ("firing", None, "firing")
    assert (muted.alert.state, over.alert.state, over.event) == ("firing", "resolved", None)


def test_what_got_worse_while_muted_is_told_when_it_is_not_any_more() -> None:
    """Who heard of a warning that became critical while it was muted hears that then, and of its end in any case."""
    looks = [("warning", 0, False), ("warning", 2 * MINUTE, False), ("critical", MINUTE, True)]
    *_, (_, _, worse), (_, _, heard), (_, _, again) = walked([*looks, *[("warning", 1, False)] * 2])
    *_, (_, _, over) = walked([*looks, (None, MINUTE, False)])

    assert (worse.event, heard.event, heard.alert.severity) == (None, "worse", "critical")
    assert (again.event, over.event) == (None, "resolved")


def test_what_gets_worse_is_nobodys_again() -> None:
    """An acknowledgement holds as long as the alert fires and is no worse."""
    alert = Alert(
        state="firing",
        severity="warning",
        since=0,
        fired=0,
        told=0,
        acknowledged=1,
        acknowledged_by="ada",
    )
    assert step(alert, "notice", 5, PATIENCE) == AlertStep(alert)
    worse = step(alert, "critical", 5, PATIENCE)
    assert (worse.event, worse.alert.acknowledged, worse.alert.acknowledged_by) == (
        "worse",
        None,
        None,
    )
