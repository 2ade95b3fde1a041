"""Run-level rules: the end of the run, lost records, lints, ranks and resumes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ampmon.lints.reporter import LINTS
from ampmon_server.analysis.diagnosis.effective import effective
from ampmon_server.analysis.diagnosis.rules.lints import STOPPING
from ampmon_server.model.scale_policy import ScalePolicy
from ampmon_server.model.series import Resume
from made_cases import START, case, cells_of, event, found, rules_of, scaler, torch_scaler, trained


def _healthy():
    return trained(lambda step, scale: False, 300)


def test_a_crash_is_critical_and_an_interruption_is_not():
    """A crash is critical and names its exception; a KeyboardInterrupt is a notice."""
    killed = found(case(_healthy(), status="crashed"))
    raised = found(case(_healthy(), status="crashed", events=(event("exception", type="OSError"),)))
    broken = (event("exception", type="KeyboardInterrupt"),)
    (interrupted,) = found(case(_healthy(), status="crashed", events=broken))
    assert [each.rule for each in killed + raised] == ["crashed", "crashed"]
    assert ["full disk" in each.explanation for each in killed + raised] == [True, False]
    assert "OSError" in raised[0].title
    assert (killed[0].severity, interrupted.severity) == ("critical", "notice")


def test_a_crash_names_the_first_exception_of_the_newest_start():
    """Exceptions of earlier starts are not named, nor those of ranks that failed because of the first."""
    old = event("exception", type="ValueError")
    cause, effect = (
        replace(event("exception", type=each), attempt=1, rank=rank)
        for each, rank in (("OutOfMemoryError", 3), ("DistBackendError", 0))
    )
    (killed,) = found(case(_healthy(), status="crashed", attempts=2, events=(old,)))
    both = (effect, cause, old)  # newest first
    (raised,) = found(case(_healthy(), status="crashed", attempts=2, events=both))
    assert killed.title == "The process died after step 299: no reason recorded"
    assert raised.title == "The process died after step 299: OutOfMemoryError"


@pytest.mark.parametrize(("type_", "what"), [("OSError", "traceback"), ("SystemExit(3)", "reason")])
def test_a_crash_says_what_to_look_for(type_, what):
    """Output has the traceback of an exception, and the reason of an exit code."""
    (crashed,) = found(case(_healthy(), status="crashed", events=(event("exception", type=type_),)))
    assert f"It raised {type_}: see its own output for the {what}." in crashed.explanation


@pytest.mark.parametrize(("quiet_s", "expected"), [(59, []), (61, ["silent"])])
def test_silence_begins_after_a_minute(quiet_s, expected):
    """A silent run gets a warning 60 s after its last record."""
    run = case(_healthy(), status="silent")
    assert rules_of(replace(run, now=run.last_time + quiet_s * 1_000_000)) == expected


def test_a_process_that_died_before_its_first_step_has_nothing_to_resume():
    """A crash after a step recommends loading the scaler's state, one before the first step nothing."""
    late, early = (found(case(*runs, status="crashed"))[0] for runs in ([_healthy()], []))
    assert "load_state_dict" in late.fix
    assert not early.fix


def test_the_rank_that_stopped_first_is_named():
    """The finding names the rank that stopped first, and no rank if all stopped at the same step."""
    cells = _healthy().recent
    for other, rank in ((cells, None), (cells[:-5], 3)):
        run = case(scaler(cells, ranks={0: cells, 3: other}), status="silent")
        (finding,) = found(replace(run, now=run.last_time + 90_000_000))
        assert finding.evidence["rank"] == rank
        assert ("rank 3 was the first to stop, after step 294" in finding.title) == (rank == 3)


def test_long_updates_are_given_their_time():
    """With updates of one minute, a run counts as silent only after ten updates."""
    run = replace(case(_healthy(), status="silent"), update_us=60e6)
    assert rules_of(replace(run, now=run.last_time + 500_000_000)) == []
    assert rules_of(replace(run, now=run.last_time + 700_000_000)) == ["silent"]


@pytest.mark.parametrize("field", ["lost", "dropped", "rivals"])
def test_one_lost_record_is_a_warning(field):
    """One lost or dropped record, or one rival process, is a warning."""
    (finding,) = found(case(_healthy(), **{field: 1}))
    assert (finding.rule, finding.severity) == ("telemetry_gaps", "warning")
    assert finding.title.startswith("1 ")
    assert "database was restored from a copy or replaced" in finding.explanation


@pytest.mark.parametrize(
    ("scheduled", "severity"), [(0, None), (4, "notice"), (5, "warning"), (12, "warning")]
)
def test_a_scheduler_that_runs_ahead_is_found(scheduled, severity):
    """A scheduler ahead by fewer than five steps is a notice, by five or more a warning."""
    findings = found(case(_healthy(), scheduled=scheduled))
    assert [each.severity for each in findings] == ([severity] if severity else [])


def test_a_lint_is_passed_on_word_for_word():
    """A lint of the newest start is one finding with the lint's own words."""
    words = {"rule": "fused_sgd", "severity": "warning", "title": "A", "explanation": "B"}
    old = event("lint", **words, fix="old", parameters=[])
    new = replace(event("lint", **words, fix="C", parameters=["head.weight"], stop=True), attempt=1)
    (finding,) = found(case(_healthy(), events=(new, new, old), attempts=2))
    assert (finding.rule, finding.title, finding.explanation, finding.fix) == (
        "fused_sgd",
        "A",
        "B",
        "C",
    )
    assert (finding.parameters, finding.stop) == (("head.weight",), True)
    assert rules_of(case(_healthy(), events=(event("init"), event("lint", rule="x")))) == []


def test_words_of_a_run_are_plain_and_short():
    """Control characters are removed from lints and exceptions, long text is cut, and invalid rules are ignored."""
    evil = "a\x1b]0;owned\x07b" + "c" * 10_000
    words = {"severity": "warning", "title": evil, "explanation": evil, "fix": evil}
    sick = case(_healthy(), events=(event("lint", rule="fused_sgd", parameters=[evil], **words),))
    (finding,) = found(sick)
    odd = [event("lint", rule=rule, **words) for rule in ("a\x1b[2J", "Up", "x" * 65)]
    raised = event("exception", type=evil)
    (crash,) = found(replace(case(_healthy(), events=(raised,)), status="crashed"))

    shown = (finding.title, finding.explanation, finding.fix, *finding.parameters, crash.title)
    assert not any("\x1b" in each or len(each) > 4096 for each in shown)
    assert rules_of(case(_healthy(), events=tuple(odd))) == []


def test_only_lints_that_stop_a_run_stop_it():
    """Only lints that stop a run set `stop`, whatever the event says."""
    words = {
        "severity": "critical",
        "title": "A",
        "explanation": "B",
        "fix": "rm -rf /",
        "stop": True,
    }
    events = [event("lint", rule=rule, **words) for rule in (*LINTS, "planted", "dead_scale")]
    findings = [found(case(_healthy(), events=(each,)))[0] for each in events]
    assert (
        {each.rule for each in findings if each.stop}
        == STOPPING
        == {rule for rule, lint in LINTS.items() if lint.stop}
    )


def test_of_two_lints_the_first_reported_is_the_cause():
    """Of lints of equal severity, the one reported first comes first."""
    words = {"severity": "critical", "title": "", "explanation": "", "fix": "", "parameters": []}
    events = [event("lint", rule=rule, **words) for rule in ("fused_sgd", "poisoned_state")]
    findings = found(case(_healthy(), events=tuple(reversed(events))))
    assert [each.rule for each in findings] == ["fused_sgd", "poisoned_state"]


@pytest.mark.parametrize("later", ["poisoned_state", "dead_scale"])
def test_a_loop_that_destroys_weights_is_named_before_them(later):
    """A lint for `unscale_` during accumulation replaces lints that it causes, with their severity and stop."""
    words = {"title": "", "explanation": "", "fix": "", "parameters": []}
    events = [
        event("lint", rule="unscale_in_accumulation", severity="warning", **words),
        event("lint", rule=later, severity="critical", stop=True, **words),
    ]
    (finding,) = found(case(_healthy(), events=tuple(reversed(events))))
    assert (finding.rule, finding.severity, finding.stop) == (
        "unscale_in_accumulation",
        "critical",
        later in STOPPING,
    )


def test_ranks_that_disagree_stop_the_run():
    """A step that only some ranks skip is critical. The fix averages gradients or, if sharded, asks all ranks."""
    same = cells_of(*torch_scaler(lambda step, scale: False, 300))
    other = cells_of(*torch_scaler(lambda step, scale: step == 200, 300))
    assert rules_of(scaler(same, ranks={0: same, 1: same})) == []
    finding = found(scaler(same, ranks={0: same, 2: other}))[0]
    assert (finding.rule, finding.severity, finding.first_step) == (
        "ranks_disagree",
        "critical",
        200,
    )
    assert finding.stop
    assert "DistributedDataParallel" in finding.fix
    sharded = scaler(same, ranks={0: same, 2: other}, policy=ScalePolicy(layout="sharded"))
    assert "ShardedGradScaler" in found(sharded)[0].fix


def test_an_optimizer_that_parts_ranks_is_named_before_them():
    """A fused optimizer under a sharded scaler replaces the finding of disagreeing ranks, and is critical too."""
    same = cells_of(*torch_scaler(lambda step, scale: False, 300))
    other = cells_of(*torch_scaler(lambda step, scale: step == 200, 300))
    lint = event("lint", rule="sharded_fused", severity="warning", title="", explanation="", fix="")
    (finding,) = found(case(scaler(same, ranks={0: same, 1: other}), events=(lint,)))
    assert (finding.rule, finding.severity) == ("sharded_fused", "critical")


def test_a_forgotten_scale_explains_the_search_after_it():
    """A resume without the scaler's state is one finding, which explains the skips after it."""
    run = trained(lambda step, scale: 500 <= step < 512, 600, cause="unknown")
    forgotten = (Resume(500, START, 1024.0, 65536.0, restored=False),)
    findings = found(replace(run, forgotten=forgotten))
    assert findings[0].rule == "forgotten_state"
    assert not {each.rule for each in findings} & {"consecutive_skips", "skip_rate"}


def test_effective_training_is_said_in_one_sentence():
    """The summary counts the updates and samples that took effect, and how far the scheduler is ahead."""
    run = case(_healthy(), updates=1000, skipped=59, scheduled=12)
    training = effective(replace(run, config={"batch_size": 32}, ranks=2))
    assert (training.counted, training.samples, training.samples_counted) == (941, 64000, 60224)
    assert training.share == 0.941
    assert training.sentence.startswith("941 of 1\u202f000 steps applied (94.1\u202f%); 59 skipped")
    assert "(3\u202f776 training examples)" in training.sentence
    assert training.sentence.endswith("the scheduler is 12 steps ahead.")
    assert effective(case()).sentence == "No steps recorded."


def test_updates_of_several_scalers_are_no_batches():
    """With several scalers, samples are not counted. A scaler without updates is ignored."""
    one, other = _healthy(), scaler(_healthy().recent, name="D")
    idle = scaler(_healthy().recent[:0], name="E")
    both = effective(case(one, other, skipped=6, config={"batch_size": 8}))
    assert (both.updates, both.samples, both.samples_counted) == (600, None, None)
    assert both.sentence == ("594 of 600 steps of all scalers applied (99\u202f%); 6 skipped.")
    assert effective(case(one, idle, config={"batch_size": 8})).samples == 2400


def test_a_crash_before_the_first_update_has_its_lint_for_a_cause():
    """A lint before a crash without updates is the finding; after updates the crash is."""
    words = {"severity": "warning", "title": "A", "explanation": "B", "fix": "C"}
    events = (event("lint", rule="fp16_parameters", **words), event("exception", type="ValueError"))
    (finding,) = found(case(status="crashed", events=events))
    assert (finding.rule, finding.severity) == ("fp16_parameters", "critical")
    assert rules_of(case(_healthy(), status="crashed", events=events))[0] == "crashed"


def test_a_crash_at_once_after_a_lint_has_it_for_a_cause():
    """A lint after the last update explains a crash; an earlier one does not."""
    words = {"rule": "no_gradients", "severity": "critical", "title": "", "explanation": ""}
    healthy = _healthy()
    last = int(healthy.recent["last"][-1])
    for step, rules in ((last + 1, ["no_gradients"]), (last, ["no_gradients", "crashed"])):
        lint = replace(event("lint", **words), step=step)
        assert rules_of(case(healthy, status="crashed", events=(lint,))) == rules


def test_a_second_unscaling_is_the_cause_of_its_crash():
    """The lint for the `unscale_` that torch refused explains the crash, and takes its severity."""
    words = {"rule": "unscale_in_accumulation", "severity": "warning", "title": "A"}
    lint = event("lint", **words, explanation="B", fix="C")
    (finding,) = found(case(status="crashed", events=(lint,)))
    assert (finding.rule, finding.severity) == ("unscale_in_accumulation", "critical")


@pytest.mark.parametrize(
    ("update_us", "words"),
    [
        (0.5, "0.0005 ms"),
        (999_400, "999 ms"),
        (999_900, "1 s"),
        (1_500_000, "1.5 s"),
        (2_900_000, "2.9 s"),
        (9_990_000, "10 s"),
        (89_000_000, "89 s"),
        (7_200_000_000, "2 h"),
    ],
)
def test_seconds_begin_at_one(update_us, words):
    """A duration is shown in seconds from 1 s on, with two digits below 10 s, and in ms below 1 s."""
    run = case(_healthy(), status="silent", update_us=update_us)
    (finding,) = found(replace(run, now=run.last_time + 10**12))
    assert finding.title.endswith(f"; a step took {words}")
