"""The store's alerts: states, mutes, and messages that are queued with a finding, leased and sent under a limit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from uuid import UUID, uuid4

import pytest
from sqlalchemy import select, update

from ampmon import wire
from ampmon_server.alerting.messages import DeliveryOutcome, Trouble
from ampmon_server.alerting.targets import After, AlertPolicy, Target
from ampmon_server.store import Judgement, Mute, NotFound, Store
from ampmon_server.store.alerts import outbox
from ampmon_server.store.engine import engine
from ampmon_server.store.schema.global_tables import messages
from ampmon_server.store.schema.tables import alerts, runs
from batches import Trainer, now
from receiver import alerts_to


OWN = Target(name="own", url="json://127.0.0.1/x")
BAD = Target(name="bad", url="json://127.0.0.1/x", least="critical", projects=frozenset({"vision"}))
TO = alerts_to(OWN, BAD, public_url="https://ampmon.example.org")
SLOW = alerts_to(OWN, policy=AlertPolicy(after_s=After(warning=60)))
HOUR = 3600 * 10**6


def trained(store: Store, *records: str, project: str = "vision", at: int | None = None) -> UUID:
    """A run whose last update is at ``at``, by default now, with events such as `finish` at its end."""
    trainer = Trainer(uuid4(), project=project, name="run-7")
    made = [trainer.update(time=at or now()), *(trainer.event(each) for each in records)]
    store.ingest(trainer.batch(made))
    return trainer.run_id


def found(
    *severities: wire.Severity, rule: str = "skip_rate", title: str = "12 skips"
) -> Judgement:
    findings = [
        wire.Finding(rule=rule, severity=each, title=title, explanation="") for each in severities
    ]
    return Judgement(title, severities[0] if severities else None, findings)


def waiting(store: Store) -> list[tuple[str, str]]:
    """The target and title of each unsent message."""
    with engine.reading(store._engine) as connection:
        rows = connection.execute(
            select(messages.c.target, messages.c.title)
            .where(messages.c.sent.is_(None))
            .order_by(messages.c.made, messages.c.target)
        )
        return [(row.target, row.title) for row in rows]


def later(store: Store, by: int) -> None:
    """Move all messages into the past by ``by`` microseconds."""
    table = messages.c
    moved = {name: table[name] - by for name in ("made", "due", "sent")}
    with engine.writing(store._engine) as connection:
        connection.execute(update(messages).values(moved))


def settled(store: Store, trouble: Trouble | None = None) -> None:
    """Take a message to `OWN` and record that it was sent, or why it was not."""
    taken = store.take("own", 20, None)
    assert taken is not None
    store.settle(taken, DeliveryOutcome(trouble))


def states(store: Store, run_id: UUID) -> dict[str, str]:
    return {rule: alert.state for rule, (alert, _) in store.alerts(run_id).alerts.items()}


@pytest.mark.storage
def test_findings_are_stored_with_the_alerts_to_send(store: Store) -> None:
    """A critical finding fires at once and queues one message per target. Repeating it changes nothing."""
    run_id = trained(store)
    first = store.keep(run_id, found("critical"), TO)
    again = store.keep(run_id, found("critical"), TO)

    assert (first.change is None, again.change) == (False, None)
    assert states(store, run_id) == {"skip_rate": "firing"}
    assert store.run(run_id)[0].firing == store.firing() == 1
    title = "ampmon critical: run-7: 12 skips"
    assert waiting(store) == [("bad", title), ("own", title)]
    assert store.messages_due() == {"own", "bad"}


def test_ends_are_sent_and_unwanted_findings_are_no_alerts(store: Store) -> None:
    """The end of an alert goes to the same targets. A notice, or a finding no target wants, makes no alert."""
    run_id, other = trained(store), trained(store, project="text")
    store.keep(run_id, found("critical"), TO)
    store.keep(run_id, found(), TO)
    store.keep(other, found("critical"), alerts_to(BAD))
    store.keep(other, found("notice", rule="calibration"), TO)

    assert states(store, run_id) == {"skip_rate": "resolved"}
    assert states(store, other) == {}
    assert [title for _, title in waiting(store)].count("ampmon resolved: run-7: 12 skips") == 2
    assert store.firing() == 0


def test_what_gets_better_than_its_targets_want_is_not_over(store: Store) -> None:
    """An alert fires until its finding ends, also while the finding is milder than what any target wants."""
    run_id, to = trained(store), alerts_to(BAD)
    for findings in (found("critical"), found("warning")):
        store.keep(run_id, findings, to)
        assert states(store, run_id) == {"skip_rate": "firing"}
        assert waiting(store) == [("bad", "ampmon critical: run-7: 12 skips")]
    store.keep(run_id, found(), to)

    assert waiting(store) == [("bad", "ampmon resolved: run-7: 12 skips")]


def test_the_worst_of_a_rule_counts(store: Store) -> None:
    """Two findings of a rule make one alert with the worse severity."""
    run_id = trained(store)
    store.keep(run_id, found("critical", "warning"), TO)
    ((alert, _),) = store.alerts(run_id).alerts.values()

    assert alert.severity == "critical"


@pytest.mark.storage
def test_what_is_pending_is_looked_at_when_it_is_due(store: Store) -> None:
    """A warning stays pending until it is due, then fires. A pending alert whose finding ends is dropped."""
    run_id = trained(store)
    kept = store.keep(run_id, found("warning"), SLOW)

    assert kept.due is not None
    assert 55e6 < kept.due - now() <= 60e6
    assert (states(store, run_id), waiting(store)) == ({"skip_rate": "pending"}, [])
    assert store.runs_to_judge() == []
    with engine.writing(store._engine) as connection:
        connection.execute(update(runs).values(alerts_due=now()))
        connection.execute(update(alerts).values(since=now() - HOUR))
    assert [(each.run_id, each.due) for each in store.runs_to_judge()] == [(run_id, True)]
    assert store.keep(run_id, found("warning"), SLOW).due is None
    assert states(store, run_id) == {"skip_rate": "firing"}

    other = trained(store)
    store.keep(other, found("warning"), SLOW)
    store.keep(other, found(), SLOW)
    assert states(store, other) == {}


def test_silent_runs_want_to_be_looked_at(store: Store) -> None:
    """The store lists a silent run for judging, but not a finished run that was judged."""
    silent, finished = trained(store), trained(store, "finish")
    store.keep(finished, found())
    with engine.writing(store._engine) as connection:
        connection.execute(update(runs).values(silent_after=now() - 1))

    assert [(each.run_id, each.due) for each in store.runs_to_judge()] == [(silent, False)]
    assert store.run(finished)[0].status == "finished"


def test_a_run_that_ended_ends_its_alerts(store: Store) -> None:
    """A run's end resolves its alerts, and its cause of ending may fire. A run that ended a day ago fires none."""
    trainer = Trainer(uuid4(), project="vision", name="run-7")
    store.ingest(trainer.batch([trainer.update(time=now())]))
    store.keep(trainer.run_id, found("critical"), TO)
    store.ingest(trainer.batch([], ended="crashed"))
    both = [*found("critical").findings, *found("critical", rule="crashed").findings]
    store.keep(trainer.run_id, Judgement("died", "critical", both), TO)
    old = trained(store, at=now() - 25 * HOUR)
    store.keep(old, found("critical"), TO)

    assert states(store, trainer.run_id) == {"skip_rate": "resolved", "crashed": "firing"}
    assert states(store, old) == {}


@pytest.mark.storage
def test_a_deleted_run_sends_no_alerts(store: Store) -> None:
    """Deleting a run removes its messages, mutes and findings at once. Clearing it removes its alerts."""
    run_id = trained(store)
    store.mute(Mute(run_id, None, "silent", None), "ada")
    store.keep(run_id, found("critical"), TO)
    store.delete(run_id)

    assert (waiting(store), store.mutes(), store.firing(), store.runs_to_judge()) == ([], [], 0, [])
    judged = select(runs.c.verdict, runs.c.severity, runs.c.findings)
    with engine.reading(store._engine) as connection:
        assert connection.execute(judged).all() == [(None, None, None)]
    assert sum(store.clear(run_id)) > 0
    with engine.reading(store._engine) as connection:
        assert connection.execute(select(alerts)).all() == []


def test_a_message_is_taken_by_one(store: Store) -> None:
    """A leased message is not given out again until its lease expires."""
    store.keep(trained(store), found("critical"), alerts_to(OWN))
    taken = store.take("own", 20, None)

    assert taken is not None
    assert (store.take("own", 20, None), store.messages_due()) == (None, set())
    later(store, outbox.LEASE_US)
    assert store.take("own", 20, None) == taken


@pytest.mark.engines
def test_of_many_who_come_at_once_one_has_it(store: Store) -> None:
    """Of eight threads that ask for a message at once, one gets it."""
    store.keep(trained(store), found("critical"), alerts_to(OWN))
    with ThreadPoolExecutor(8) as threads:
        takings = [threads.submit(store.take, "own", 20, None) for _ in range(8)]

    assert sum(each.result() is not None for each in takings) == 1


@pytest.mark.storage
def test_a_failure_waits_ever_longer_and_ends(store: Store) -> None:
    """Retry waits double from 30 s to one hour and end after a day. Only a new error advances the version."""
    run_id = trained(store)
    store.keep(run_id, found("critical"), alerts_to(OWN))
    waits, versions = [], []
    for _ in range(9):
        taken = store.take("own", 20, None)
        assert taken is not None
        versions.append(len(store.settle(taken, DeliveryOutcome("refused", 500))))
        (delivery,) = store.alerts(run_id).deliveries
        assert (delivery.trouble, delivery.status, delivery.sent) == ("refused", 500, None)
        assert delivery.due is not None
        waits.append(round((delivery.due - now()) / 1e6))
        later(store, delivery.due - now() + 1)
    assert waits == [pytest.approx(min(30 * 2**at, 3600), abs=5) for at in range(9)]
    assert versions == [1] + [0] * 8  # repeating the same error changes nothing
    later(store, outbox.GIVE_UP_US)
    taken = store.take("own", 20, None)
    assert taken is not None
    store.settle(taken, DeliveryOutcome("slow"))
    (delivery,) = store.alerts(run_id).deliveries
    assert (delivery.trouble, delivery.due, delivery.attempts) == ("slow", None, 10)


@pytest.mark.storage
@pytest.mark.parametrize("how", ["failed", "failed often", "fails", "arrives", "is left behind"])
def test_what_is_newer_comes_after_and_alone(store: Store, how: str) -> None:
    """A newer message of an alert waits for a delivery in flight and replaces one that failed."""
    run_id = trained(store)
    store.keep(run_id, found("critical"), alerts_to(OWN))
    first = store.take("own", 20, None)
    assert first is not None
    if how.startswith("failed"):
        store.settle(first, DeliveryOutcome("refused", 500))
        later(store, 0 if how == "failed" else -HOUR)
    store.keep(run_id, found(), alerts_to(OWN))
    assert (store.messages_due() == set()) == (how != "failed often")
    if how in {"fails", "arrives"}:
        store.settle(
            first, DeliveryOutcome() if how == "arrives" else DeliveryOutcome("refused", 500)
        )
    later(store, outbox.LEASE_US)
    last = store.take("own", 20, None)
    assert last is not None
    assert last.message.title == "ampmon resolved: run-7: 12 skips"
    store.settle(last, DeliveryOutcome())
    later(store, HOUR)

    assert store.messages_due() == set()
    assert (store.target_states()["own"].waiting, store.target_states()["own"].trouble) == (0, None)


def test_what_was_sent_is_done_with(store: Store) -> None:
    """A sent message is not due again. It is deleted after the retention time."""
    run_id = trained(store)
    store.keep(run_id, found("critical"), alerts_to(OWN))
    taken = store.take("own", 20, None)
    assert taken is not None
    (change,) = store.settle(taken, DeliveryOutcome())
    (delivery,) = store.alerts(run_id).deliveries

    assert change[:2] == (run_id, store.run(run_id)[0].version)
    assert delivery.sent is not None
    assert (delivery.due, delivery.trouble) == (None, None)
    later(store, outbox.KEPT_US + HOUR)
    store.tidy_messages({"own"})
    assert store.alerts(run_id).deliveries == []


@pytest.mark.storage
def test_a_storm_is_held_back_and_sent_as_one_message(store: Store) -> None:
    """At most the hourly number of messages is sent. The rest follow as one message that lists them."""
    for number in range(7):
        store.keep(trained(store), found("critical", title=f"bad {number}"), alerts_to(OWN))
    for _ in range(3):
        taken = store.take("own", 3, None)
        assert taken is not None
        store.settle(taken, DeliveryOutcome())
    assert store.take("own", 3, None) is None
    assert store.messages_due() == set()
    assert (store.target_states()["own"].waiting, store.target_states()["own"].late) == (4, 0)
    later(store, HOUR)
    taken = store.take("own", 3, "https://ampmon.example.org")
    assert taken is not None
    assert taken.message.title == "ampmon: 4 alerts were held back"
    assert "- ampmon critical: run-7: bad 6" in taken.message.body
    store.settle(taken, DeliveryOutcome())
    assert waiting(store) == []


@pytest.mark.parametrize("again", [True, False], ids=["same run", "another"])
def test_a_clock_that_was_set_back_holds_nothing_back(store: Store, again: bool) -> None:
    """Messages that were sent while the clock was a day ahead count against no limit, and overtake no message."""
    run_id = trained(store)
    store.keep(run_id, found("critical"), alerts_to(OWN))
    settled(store)
    later(store, -24 * HOUR)
    if again:
        store.keep(run_id, found(), alerts_to(OWN))
    else:
        store.keep(trained(store), found("critical"), alerts_to(OWN))

    assert store.take("own", 1, None) is not None


@pytest.mark.storage
@pytest.mark.parametrize("minutes", [5, 90])
def test_an_end_follows_a_message_of_a_clock_ahead(store: Store, minutes: int) -> None:
    """An alert that a server with a clock ahead sent is still followed by its end, also by a delayed one."""
    run_id = trained(store)
    store.keep(run_id, found("critical"), alerts_to(OWN))
    settled(store)
    later(store, -minutes * 60 * 10**6)
    store.keep(run_id, found(), alerts_to(OWN))
    later(store, 45 * 60 * 10**6)
    taken = store.take("own", 20, None)

    assert taken is not None
    assert taken.message.title == "ampmon resolved: run-7: 12 skips"
    (delivery,) = store.alerts(run_id).deliveries
    assert delivery.sent is None


def test_what_nobody_takes_any_more_is_given_up(store: Store) -> None:
    """A message to a target missing from the configuration is given up as `removed` two hours later, not at once."""
    run_id = trained(store)
    store.keep(run_id, found("critical"), alerts_to(OWN))
    store.tidy_messages({"else"})
    assert store.messages_due() == {"own"}  # a restarted server may still configure it
    later(store, 2 * HOUR)
    store.tidy_messages({"else"})

    assert store.messages_due() == set()
    assert store.alerts(run_id).deliveries[0].trouble == "removed"


@pytest.mark.storage
def test_an_acknowledgement_counts_until_it_gets_worse(store: Store) -> None:
    """An acknowledged alert does not count as firing until it worsens. Only open alerts can be acknowledged."""
    run_id = trained(store)
    quick = alerts_to(OWN, policy=AlertPolicy(after_s=After(warning=0)))
    store.keep(run_id, found("warning"), quick)
    before = store.run(run_id)[0].version
    change = store.acknowledge(run_id, "skip_rate", "ada")

    assert (change[1], store.run(run_id)[0].version) == (before + 1, before + 1)
    assert store.run(run_id)[0].firing == 0
    ((alert, _),) = store.alerts(run_id).alerts.values()
    assert alert.acknowledged_by == "ada"
    store.keep(run_id, found("critical"), quick)
    assert store.run(run_id)[0].firing == 1
    store.keep(run_id, found(), quick)
    for rule in ("skip_rate", "else"):
        with pytest.raises(NotFound):
            store.acknowledge(run_id, rule, "ada")
    with pytest.raises(NotFound):
        store.acknowledge(uuid4(), "skip_rate", "ada")


@pytest.mark.parametrize("what", ["run", "project", "rule", "all"])
def test_what_is_muted_fires_unheard(store: Store, what: str) -> None:
    """A mute of a run, project, rule or all stops messages of the alerts it covers, until it is lifted."""
    run_id, other = trained(store), trained(store, project="text")
    wanted = {
        "run": Mute(run_id, None, None, None),
        "project": Mute(None, "vision", None, now() + HOUR),
        "rule": Mute(None, "vision", "skip_rate", None),
        "all": Mute(None, None, None, None),
    }[what]
    kept, change = store.mute(wanted, "ada")
    assert (change is None) == (what != "run")
    for each in (run_id, other):
        store.keep(each, found("critical"), alerts_to(OWN))

    assert states(store, run_id) == {"skip_rate": "firing"}
    assert len(waiting(store)) == (0 if what == "all" else 1)
    assert store.alerts(run_id).mutes == [kept]
    assert store.find_mute(kept.mute_id) == kept
    store.lift(kept)
    store.keep(run_id, found("critical"), alerts_to(OWN))
    assert len(waiting(store)) == (1 if what == "all" else 2)
    assert store.mutes() == []


@pytest.mark.storage
@pytest.mark.parametrize("queued", ["tried", "held back", "new"])
def test_what_is_muted_is_not_sent_from_the_queue(store: Store, queued: str) -> None:
    """A mute also stops messages that already wait, however they came to wait. They are sent once it is lifted."""
    hourly = 1
    store.keep(trained(store), found("critical"), alerts_to(OWN))
    if queued == "tried":
        settled(store, "unreachable")
    if queued == "held back":
        settled(store)
        store.keep(trained(store), found("critical"), alerts_to(OWN))
        assert store.take("own", hourly, None) is None
    mute, _ = store.mute(Mute(None, "vision", None, None), "ada")
    later(store, 2 * HOUR)

    assert (store.messages_due(), store.take("own", hourly, None)) == (set(), None)
    assert (store.target_states()["own"].waiting, store.target_states()["own"].late) == (1, 0)
    store.lift(mute)
    assert store.messages_due() == {"own"}
    assert store.take("own", hourly, None) is not None


@pytest.mark.storage
def test_what_ended_while_muted_is_not_sent_as_firing(store: Store) -> None:
    """A message that waits when its alert ends under a mute is never sent. The end is sent after the mute."""
    run_id = trained(store)
    store.keep(run_id, found("critical"), alerts_to(OWN))
    settled(store, "unreachable")
    mute, _ = store.mute(Mute(run_id, None, "skip_rate", None), "ada")
    store.keep(run_id, found(), alerts_to(OWN))
    store.lift(mute)
    later(store, HOUR)

    assert (states(store, run_id), store.messages_due()) == ({"skip_rate": "resolved"}, set())
    assert [(each.run_id, each.due) for each in store.runs_to_judge()] == [(run_id, True)]
    for _ in range(2):
        store.keep(run_id, found(), alerts_to(OWN))
    assert (waiting(store), store.runs_to_judge()) == (
        [("own", "ampmon resolved: run-7: 12 skips")],
        [],
    )


def test_what_returned_while_muted_is_sent_if_nobody_knew(store: Store) -> None:
    """An alert that ended and returned under a mute is sent after it only to a target that missed it before."""
    knows, missed = trained(store), trained(store)
    store.keep(knows, found("critical"), alerts_to(OWN))
    settled(store)
    store.keep(missed, found("critical"), alerts_to(OWN))
    mute, _ = store.mute(Mute(None, None, None, None), "ada")
    for findings in (found(), found("critical")):
        for run_id in (knows, missed):
            store.keep(run_id, findings, alerts_to(OWN))
    assert (waiting(store), store.firing()) == ([], 2)
    store.lift(mute)

    assert [each.run_id for each in store.runs_to_judge()] == [missed]
    for run_id in (knows, missed):
        store.keep(run_id, found("critical"), alerts_to(OWN))
    assert [each.made for each in store.alerts(knows).deliveries if each.sent is None] == []
    assert waiting(store) == [("own", "ampmon critical now: run-7: 12 skips")]


@pytest.mark.parametrize("outcome", [DeliveryOutcome(), DeliveryOutcome("unreachable")])
def test_what_is_under_way_when_its_alert_ends_is_not_retried(
    store: Store, outcome: DeliveryOutcome
) -> None:
    """A delivery that is under way while its alert ends under a mute is recorded, and not retried if it fails."""
    run_id = trained(store)
    store.keep(run_id, found("critical"), alerts_to(OWN))
    taken = store.take("own", 20, None)
    assert taken is not None
    mute, _ = store.mute(Mute(run_id, None, None, None), "ada")
    store.keep(run_id, found(), alerts_to(OWN))
    store.settle(taken, outcome)
    store.lift(mute)
    (delivery,) = store.alerts(run_id).deliveries

    assert (delivery.sent is not None, delivery.trouble) == (not outcome.trouble, outcome.trouble)
    assert delivery.due is None


@pytest.mark.storage
def test_a_mute_takes_the_place_of_another(store: Store) -> None:
    """Muting the same run and rule again replaces the mute and keeps its id."""
    run_id = trained(store)
    first, _, kept = (
        store.mute(Mute(run_id, None, rule, until), "ada")[0]
        for rule, until in (("silent", None), (None, None), ("silent", now() + HOUR))
    )

    (newest, run), _ = store.mutes()
    assert (newest, kept.mute_id) == (kept, first.mute_id)
    assert run is not None
    assert (run.run_id, run.name) == (str(run_id), "run-7")
    assert {each.rule for each, _ in store.mutes()} == {None, "silent"}
    assert len(store.mutes()) == 2


def test_mutes_are_listed_for_who_may_see_their_projects(store: Store) -> None:
    """A project's mutes are listed only for that project, global mutes for all. Long-ended mutes are deleted."""
    run_id = trained(store)
    for mute in (
        Mute(run_id, None, None, None),
        Mute(None, "text", None, None),
        Mute(None, None, "silent", now() - 30 * 24 * HOUR),
    ):
        store.mute(mute, "ada")

    assert {each.project for each, _ in store.mutes({"vision"})} == {"vision", None}
    store.tidy_messages(set())
    assert {each.project for each, _ in store.mutes()} == {"vision", "text"}


@pytest.mark.storage
def test_open_alerts_are_listed(store: Store) -> None:
    """Pending and firing alerts are listed by project, with their deliveries and mutes."""
    run_id, other = trained(store), trained(store, project="text")
    store.keep(run_id, found("critical"), TO)
    store.keep(other, found("warning"), SLOW)
    store.mute(Mute(None, "text", None, None), "ada")
    listed = {
        subject.project: (
            [alert.state for alert, _ in stand.alerts.values()],
            sorted(each.target for each in stand.deliveries),
            len(stand.mutes),
        )
        for subject, stand in store.open_alerts(9)
    }

    assert listed == {
        "text": (["pending"], [], 1),
        "vision": (["firing"], ["bad", "own"], 0),
    }
    assert [each[0].project for each in store.open_alerts(9, {"text"})] == ["text"]


@pytest.mark.storage
def test_messages_are_listed(store: Store) -> None:
    """Sent and unsent messages are listed apart, with project filter, limit and total."""
    for project in ("vision", "text"):
        store.keep(trained(store, project=project), found("critical"), TO)
    for target, outcome in (("bad", DeliveryOutcome("refused", 500)), ("own", DeliveryOutcome())):
        while taken := store.take(target, 20, None):
            store.settle(taken, outcome)
    sent, failed = store.messages(1, sent=True), store.messages(9, sent=False)

    assert (len(sent.messages), sent.total) == (1, 2)
    subject, title, delivery = sent.messages[0]
    assert (subject.name, title[:15]) == ("run-7", "ampmon critical")
    assert (delivery.target, delivery.trouble) == ("own", None)
    assert store.messages(9, {"text"}, sent=True).messages[0][0].project == "text"
    ((_, _, tried),) = failed.messages
    assert (tried.target, tried.attempts, tried.status, tried.sent) == ("bad", 1, 500, None)
    assert store.messages(9, {"text"}, sent=False) == ([], 0)


@pytest.mark.storage
def test_targets_tell_how_they_do(store: Store) -> None:
    """A target's state gives its waiting and late messages, its last delivery and its newest failure."""
    store.keep(trained(store), found("critical"), TO)
    taken = store.take("own", 20, None)
    assert taken is not None
    store.settle(taken, DeliveryOutcome("unreachable"))
    taken = store.take("bad", 20, None)
    assert taken is not None
    store.settle(taken, DeliveryOutcome())
    own, bad = (store.target_states()[name] for name in ("own", "bad"))

    assert (own.waiting, own.late, own.sent, own.trouble) == (1, 1, None, "unreachable")
    assert (bad.waiting, bad.late, bad.trouble) == (0, 0, None)
    assert bad.sent is not None
