"""The choice of the one recommended fix of a run, and the evidence from a replay."""

from __future__ import annotations

from ampmon.wire import Finding, Severity
from ampmon_server.analysis.diagnosis.diagnose import recommend
from ampmon_server.analysis.policy.simulation import Recommended
from ampmon_server.model.scale_policy import ScalePolicy
from made_cases import found, trained


def finding(rule: str, fix: str, severity: Severity = "warning", **fields) -> Finding:
    """A finding of the scaler that `trained` returns."""
    words = {"title": rule, "explanation": "Why.", "scaler": "default"}
    return Finding(rule=rule, severity=severity, fix=fix, **{**words, **fields})


def eager(interval: int = 20):
    """A run that overflows at 2**17 and tries that scale every ``interval`` updates."""
    policy = ScalePolicy(growth_interval=interval)
    return trained(lambda step, scale: scale >= 2.0**17, 600, policy=policy)


def test_the_first_fix_is_recommended_and_the_others_are_second():
    """The first fix is the recommendation. Every other fix says why it is an alternative."""
    given_ = [
        finding("crashed", "", "critical"),
        finding("first", "a", "critical"),
        finding("as bad", "b", "critical"),
        finding("milder", "c"),
    ]
    none, first, as_bad, milder = recommend(given_, [])
    assert (none.second, first.second) == ("", "")
    assert as_bad.second.startswith(
        "Alternative, because the recommended fix is for a finding that is closer"
    )
    assert milder.second.startswith(
        "Alternative, because the recommended fix is for a finding that is more severe"
    )


def test_the_same_fix_is_said_once():
    """Only the first of several findings with the same fix keeps it."""
    fixes = [each.fix for each in recommend([finding(each, "a") for each in "xyz"], [])]
    assert fixes == ["a", "", ""]


def test_a_replay_is_evidence_for_a_setting():
    """The explanation of a recommended setting ends with the result of its replay."""
    (only,) = recommend([finding("sawtooth", "a", setting={"growth_interval": 2000.0})], [eager()])
    assert only.second == ""
    assert only.explanation.startswith(
        "Why. Result of a replay of the newest 600 steps with this setting: "
    )
    assert only.explanation.endswith(" instead of 28.")


def test_a_setting_that_gains_nothing_is_not_recommended():
    """A setting that gains nothing in a replay becomes an alternative, and the next fix is recommended."""
    run = trained(
        lambda step, scale: step % 200 == 199, 600, policy=ScalePolicy(growth_interval=10**9)
    )
    vain = finding("skip_rate", "a", setting={"growth_interval": 4000.0})
    refuted, first = recommend([vain, finding("other", "b")], [run])
    assert refuted.second == (
        "Alternative, because a replay of the newest 600 steps with this setting gains nothing: About 3 skips (1 to "
        "3) instead of 3."
    )
    assert (refuted.explanation, first.second) == ("Why.", "")


def test_only_the_setting_of_the_scaler_that_is_looked_at_is_recommended():
    """The recommendation for another scaler has the code but no setting."""
    findings = found(eager())
    assert Recommended.of(findings, "default").setting == {"growth_interval": 2000.0}
    other = Recommended.of(findings, "second")
    assert (other.code, other.setting) == (findings[0].fix, {})
    assert Recommended.of([], "default") == Recommended()


def test_a_fix_that_does_more_than_set_a_scale_is_not_replayed():
    """A fix that also changes the training loop is not replayed."""
    dead = trained(lambda step, scale: True, 200)
    (first, *_) = [each for each in found(dead) if each.fix]
    assert "Replayed" not in first.explanation
