"""The one recommendation of a run: which fix it is, what a replay says for it, and why the others are second."""

from __future__ import annotations

from ampmon.wire import Finding, Severity
from ampmon_server.analysis.diagnosis.recommending import recommend
from ampmon_server.analysis.policy import Recommended
from ampmon_server.model.case import ScalePolicy
from made_cases import found, trained


def finding(rule: str, fix: str, severity: Severity = "warning", **fields) -> Finding:
    """A finding of the scaler of `trained`."""
    words = {"title": rule, "explanation": "Why.", "scaler": "default"}
    return Finding(rule=rule, severity=severity, fix=fix, **{**words, **fields})


def eager(interval: int = 20):
    """A run that overflows at 2^17, which it tries after every ``interval`` updates."""
    policy = ScalePolicy(growth_interval=interval)
    return trained(lambda step, scale: scale >= 2.0**17, 600, policy=policy)


def test_the_first_fix_is_recommended_and_the_others_are_second():
    """A finding without a fix recommends nothing; later ones say whether the recommended one is worse or a cause."""
    given_ = [
        finding("crashed", "", "critical"),
        finding("first", "a", "critical"),
        finding("as bad", "b", "critical"),
        finding("milder", "c"),
    ]
    none, first, as_bad, milder = recommend(given_, [])
    assert (none.second, first.second) == ("", "")
    assert as_bad.second.startswith(
        "Alternative, because the recommended fix is for a finding that is nearer"
    )
    assert milder.second.startswith(
        "Alternative, because the recommended fix is for a finding that is more severe"
    )


def test_the_same_fix_is_said_once():
    """Of findings with the same code the first keeps it."""
    fixes = [each.fix for each in recommend([finding(each, "a") for each in "xyz"], [])]
    assert fixes == ["a", "", ""]


def test_a_replay_is_evidence_for_a_setting():
    """The explanation of a recommended setting ends in what a replay of the newest updates says of it."""
    (only,) = recommend([finding("sawtooth", "a", setting={"growth_interval": 2000.0})], [eager()])
    assert only.second == ""
    assert only.explanation.startswith("Why. Replayed with this setting, the newest 600 steps: ")
    assert only.explanation.endswith(" instead of 28.")


def test_a_setting_that_gains_nothing_is_not_recommended():
    """Batches that overflow at any scale do so under any interval: the next finding's fix is the recommendation."""
    run = trained(
        lambda step, scale: step % 200 == 199, 600, policy=ScalePolicy(growth_interval=10**9)
    )
    vain = finding("skip_rate", "a", setting={"growth_interval": 4000.0})
    refuted, first = recommend([vain, finding("other", "b")], [run])
    assert refuted.second == (
        "Alternative, because replayed with this setting the newest 600 steps gain nothing: "
        "About 3 skips (1 to 3) instead of 3."
    )
    assert (refuted.explanation, first.second) == ("Why.", "")


def test_only_the_setting_of_the_scaler_that_is_looked_at_is_recommended():
    """Of another scaler the code is known, and nothing of it is a setting to show."""
    findings = found(eager())
    assert Recommended.of(findings, "default").setting == {"growth_interval": 2000.0}
    other = Recommended.of(findings, "second")
    assert (other.code, other.setting) == (findings[0].fix, {})
    assert Recommended.of([], "default") == Recommended()


def test_a_fix_that_does_more_than_set_a_scale_is_not_replayed():
    """Where the code also changes the loop, a replay of the setting alone would say nothing of it."""
    dead = trained(lambda step, scale: True, 200)
    (first, *_) = [each for each in found(dead) if each.fix]
    assert "Replayed" not in first.explanation
