"""Replays of runs with known overflows: exact where the run determines the result, else a range."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ampmon_server.analysis.policy import simulate
from ampmon_server.analysis.policy.history import History
from ampmon_server.analysis.policy.replay import Replay, ReplayOutcome
from ampmon_server.analysis.policy.scalers import DEFAULTS, Kind, Setting, changed, recorded
from ampmon_server.analysis.policy.simulate import Simulator, advise
from ampmon_server.analysis.policy.simulation import Lost, Recommended, Share, Skips, sentence
from ampmon_server.model.scale_policy import ScalePolicy
from ampmon_server.model.series import empty_gradients
from made_cases import samples_of
from policy.made import history
from policy.made import recorded as record


RANDOM = np.random.default_rng(3)
NOISY = 12 + RANDOM.normal(0, 0.6, 3000)
"""The power of two from which each update overflows."""


def _noisy(update: int, scale: float) -> bool:
    return bool(scale >= 2.0 ** NOISY[update])


def _torch(interval: int, init: float = 2.0**16) -> Setting:
    return Setting("torch", init, 2.0, 0.5, interval)


def test_the_same_policy_is_the_same_run() -> None:
    """A replay under the recorded policy has the recorded skips and scales."""
    run = history(record(3000, _noisy, growth_interval=50), growth_interval=50)
    simulated = Simulator(run).run(recorded(run.policy))
    assert simulated.skips.expected == run.skips
    assert simulated.scales == Simulator(run).recorded().scales


@pytest.mark.parametrize("rules", ["hysteresis=2, min_scale=1", "hysteresis=3, consecutive=1"])
def test_a_run_with_hysteresis_is_replayed_with_it(rules: str) -> None:
    """A replay of a policy with hysteresis and a least scale has the recorded skips and scales."""
    policy = ScalePolicy(
        scaler_type=f"megatron.DynamicGradScaler({rules})", device="none", growth_interval=50
    )
    machine, updates = recorded(policy).machine(own=policy), []
    for update in range(3000):
        updates.append((machine.scale, _noisy(update, machine.scale)))
        if updates[-1][1]:
            machine.overflow()
        else:
            machine.clean(1)
    run = replace(history(updates), policy=policy)
    simulator = Simulator(run)
    simulated = simulator.run(recorded(policy))
    assert simulated.skips.expected == run.skips
    assert simulated.scales == simulator.recorded().scales


def test_a_setting_that_changed_is_compared_with_the_run() -> None:
    """If the interval grew during training, the newest one has fewer skips than the run, and the sentence says so."""
    early = record(500, lambda update, scale: scale >= 2.0**12, growth_interval=20)
    later = record(
        500, lambda update, scale: scale >= 2.0**12, init_scale=2.0**11, growth_interval=400
    )
    run = history([*early, *later], growth_interval=400)
    simulator = Simulator(run)
    was, would = simulator.recorded(), simulator.run(recorded(run.policy))
    assert was.setting == would.setting
    assert would.skips.high < was.skips.low
    assert f"instead of {was.skips.low}." in sentence(was, would)


def test_the_path_of_the_scale_is_reported_at_places() -> None:
    """The path equals the recorded scales under the run's own policy, and is constant for a fixed scale."""
    updates = record(3000, _noisy, growth_interval=50)
    run = history(updates, growth_interval=50)
    simulator, places = Simulator(run), run.places(100, 2000, most=400)
    levels = [float(np.log2(updates[place][0])) for place in places.tolist()]
    assert (places[0], places[-1], len(places)) == (100, 2000, 400)
    for found in (
        simulator.recorded_path(places),
        simulator.path(recorded(run.policy), places),
    ):
        assert found.steps.tolist() == places.tolist()
        assert found.expected.tolist() == levels
        assert (found.low <= found.high).all()
    fixed = simulator.path(Setting("fixed", 1024.0), places)
    assert set(fixed.low) == set(fixed.expected) == set(fixed.high) == {10.0}


def test_another_stretch_of_a_path_takes_no_other_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A zoom reuses the replays of the same setting and returns a part of its path."""
    run = history(record(3000, _noisy, growth_interval=50), growth_interval=50)
    simulator, places = Simulator(run), run.places(0, 2999, most=3000)
    found, whole = simulator.run(_torch(100)), simulator.path(_torch(100), places)
    monkeypatch.delattr(Replay, "run")  # from here on, a replay raises
    part = simulator.path(_torch(100), places[700:900])
    for name in ("steps", "low", "expected", "high"):
        assert (getattr(part, name) == getattr(whole, name)[700:900]).all()
    assert found == simulator.run(_torch(100))


@pytest.mark.parametrize("interval", [20, 100, 400])
def test_the_skips_of_another_interval_are_in_the_band(interval: int) -> None:
    """For random overflows, the range under another interval contains the true number of skips, and is narrow."""
    run = history(record(3000, _noisy, growth_interval=50), growth_interval=50)
    skips = Simulator(run).run(_torch(interval)).skips
    real = sum(skipped for _, skipped in record(3000, _noisy, growth_interval=interval))
    assert skips.low <= real <= skips.high
    # Late overflows may come from outliers, so few skips give no certain answer.
    assert skips.known or skips.high - skips.low <= 7


def test_a_scale_never_tried_is_a_band() -> None:
    """For scales that were never tried, the number of skips is a wide range from 0."""
    run = history(record(1500, lambda update, scale: False))
    skips = Simulator(run).run(_torch(100)).skips
    assert not skips.known
    assert skips.low == 0
    assert skips.high >= 14


def test_a_lower_fixed_scale_is_known() -> None:
    """A lower fixed scale than those that fit has almost no skips."""
    run = history(record(500, lambda update, scale: scale >= 2.0**13, growth_interval=2000))
    assert Simulator(run).run(Setting("fixed", 2.0**10)).skips.high <= 3


def test_nan_is_skipped_at_any_scale() -> None:
    """Skips that no scale prevents occur under every policy."""
    run = history(
        record(1000, lambda update, scale: update in {100, 500}, growth_interval=2000), {100, 500}
    )
    for setting in (Setting("fixed", 1.0), _torch(5000, 2.0**10)):
        assert Simulator(run).run(setting).skips.low >= 2


@pytest.mark.parametrize("kind", ["megatron", "deepspeed", "fairseq", "torch"])
def test_each_framework_finds_the_ceiling(kind: Kind) -> None:
    """Every framework's policy spends most of a run just below a fixed ceiling."""
    run = history(record(3000, lambda update, scale: scale >= 2.0**12, growth_interval=100))
    simulated = Simulator(run).run(changed(kind, ScalePolicy()))
    assert max(simulated.scales, key=lambda each: each.updates).scale in {2.0**11, 2.0**10}


def test_deepspeed_says_that_it_would_have_raised() -> None:
    """DeepSpeed's replay of a run that overflows at any scale ends with its error."""
    updates = record(200, lambda update, scale: True)
    run = history(updates, set(range(200)))
    assert "raises" in str(Simulator(run).run(DEFAULTS["deepspeed"]).ended)


def test_a_scale_set_by_hand_counts_for_what_it_tells() -> None:
    """Updates at a scale that was set manually, or that is invalid, are replayed like any others."""
    updates = (
        [(2.0**10, False)] * 50 + [(2.0**14, True)] * 3 + [(0.0, False)] + [(2.0**9, False)] * 50
    )
    run = history(updates)
    assert run.skips == 3
    assert run.replayed == len(updates)
    assert Simulator(run).run(Setting("fixed", 2.0**10)).skips.low <= 3


def test_the_recommendation_gains() -> None:
    """For a run that overflows every 20 updates, the advice is a longer interval and an init_scale near the ceiling."""
    run = history(
        record(3000, lambda update, scale: scale >= 2.0**12, growth_interval=20), growth_interval=20
    )
    advice = advise(Simulator(run), Recommended())
    setting = advice.simulation.setting
    assert setting.growth_interval is not None
    assert setting.growth_interval >= 500
    assert setting.init_scale in {2.0**10, 2.0**11}
    assert advice.words == sentence(Simulator(run).recorded(), Simulator(run).run(setting))
    assert advice.second == "Alternative: no finding recommends a change."
    assert advice.code == (
        f"scaler = ampmon.GradScaler(init_scale={setting.init_scale:.0f}, "
        f"growth_interval={setting.growth_interval})  # init_scale was 65536; growth_interval was 20"
    )


def test_what_findings_recommend_is_advised_without_a_search() -> None:
    """A setting that the findings recommend is simulated and returned with their code, without a search."""
    run = history(
        record(3000, lambda update, scale: scale >= 2.0**12, growth_interval=20), growth_interval=20
    )
    advice = advise(Simulator(run), Recommended("code", {"growth_interval": 60.0}))
    setting = advice.simulation.setting
    assert (advice.code, advice.second, setting.growth_interval) == ("code", "", 60)
    assert advice.simulation == Simulator(run).run(setting)


def test_a_wide_band_beside_what_was_is_an_answer() -> None:
    """A range is inconclusive only if the recorded number of skips is inside it and it is wide.

    Then nothing is said of underflow either: it depends on the scales that the run would have had.
    """
    was = Simulator(history(record(100, lambda update, scale: update % 10 == 0))).recorded()
    would = replace(was, setting=replace(was.setting, growth_interval=7))

    def words(low: int, high: int) -> str:
        return sentence(was, replace(would, skips=Skips(low, (low + high) / 2, high)))

    assert words(0, 6) == "0 to 6 skips instead of 10."
    assert words(0, 40).startswith("Inconclusive, because there is too little data")
    assert words(9, 11).startswith("About 10 skips")
    lost = Lost(Share(0.0, 0.0, 0.0), Share(0.2, 0.5, 0.8))
    was, would = replace(was, lost=lost), replace(would, lost=lost)
    assert words(0, 6) == "0 to 6 skips instead of 10; 50\u202f% subnormal, 0\u202f% zero."
    assert words(0, 40).endswith(": 0 to 40 skips instead of 10.")


def test_the_recommendation_is_written_in_the_framework_s_settings() -> None:
    """The advice for a Megatron run consists of Megatron's flags."""
    updates = record(3000, lambda update, scale: scale >= 2.0**12, growth_interval=20)
    of = {"scaler_type": "megatron.DynamicGradScaler(hysteresis=2, min_scale=1)", "device": "none"}
    advice = advise(Simulator(history(updates, growth_interval=20, **of)), Recommended())
    assert re.fullmatch(r"--initial-loss-scale \d+ --loss-scale-window \d+", advice.code)


def test_a_sample_at_a_dead_scale_tells_nothing() -> None:
    """A sample at a dead scale does not bound any scale."""
    steps = np.arange(20)
    alive, dead = (
        History.of(
            steps,
            np.full(20, 2.0**10),
            np.zeros(20, bool),
            np.zeros(20, bool),
            policy=ScalePolicy(),
            samples=samples_of([5], {0: 1.0}, scale=scale),
        ).surely
        for scale in (2.0**10, 0.0)
    )
    assert np.isfinite(alive).all()
    assert dead.tolist() == [np.inf]


def test_a_large_gradient_computed_in_fp32_shows_no_overflow() -> None:
    """A clean sample of a gradient in fp32 above 65504, such as that of a temperature, predicts no skip."""
    samples = samples_of(list(range(0, 200, 10)), {0: 1.0}, scale=2.0**16)
    temperature = replace(samples.off_grid, parameters=samples.step * 0 + 1, amax=samples.scale * 4)
    run = History.of(
        np.arange(200),
        np.full(200, 2.0**16),
        np.zeros(200, bool),
        np.zeros(200, bool),
        policy=ScalePolicy(),
        samples=replace(samples, off_grid=temperature),
    )
    assert (run.surely > 30).all()
    skips = Simulator(run).run(_torch(100)).skips
    assert (skips.low, skips.known) == (0, True)


def test_nothing_is_recommended_where_nothing_gains() -> None:
    """For a run without skips, the advice is to keep its setting."""
    run = history(record(500, lambda update, scale: False, init_scale=2.0**8), init_scale=2.0**8)
    advice = advise(Simulator(run), Recommended())
    assert advice.simulation.setting == recorded(run.policy)
    assert advice.words.startswith("No tested setting")


@pytest.fixture
def strides(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The strides that each replay took, which are its cost. The bound is a tenth of the product's."""
    monkeypatch.setattr(simulate, "STRIDES_MAX", simulate.STRIDES_MAX // 10)
    taken: list[int] = []
    run = Replay.run

    def counted(replay: Replay, *arguments: Any) -> ReplayOutcome:
        outcome = run(replay, *arguments)
        taken.append(outcome.strides)
        return outcome

    monkeypatch.setattr(Replay, "run", counted)
    return taken


def bound(strides: list[int]) -> int:
    """The bound on all strides: each of the four readings of a run ends with the replay that reaches it."""
    return 4 * (simulate.STRIDES_MAX + max(strides))


def test_a_long_calm_run_is_replayed_in_few_strides(strides: list[int]) -> None:
    """A replay of 200,000 updates takes at most five strides per skip."""
    n = 200_000
    skipped = np.arange(n) % 2001 == 2000
    steps = np.arange(n)
    scales = np.where(skipped, 2.0**13, 2.0**12)
    run = History.of(
        steps,
        scales,
        skipped,
        np.zeros(n, bool),
        policy=ScalePolicy(),
        samples=empty_gradients(),
        updates=10**7,
    )
    Simulator(run).run(recorded(ScalePolicy()))
    assert max(strides) <= 5 * run.skips
    assert not run.is_whole


@pytest.mark.parametrize("kind", ["megatron", "deepspeed", "fairseq", "torch"])
def test_growth_at_each_update_is_bounded(kind: Kind, strides: list[int]) -> None:
    """A replay in which the scale may grow at every update takes at most one stride per update."""
    run = history([(65536.0, False)] * 2000)
    simulator = Simulator(run)
    found = simulator.run(changed(kind, run.policy, growth_interval=1))
    assert max(strides) <= 2000
    assert sum(strides) <= bound(strides)
    assert found.scales[-1].scale == 2.0**127
    assert 0 < found.skips.expected < 2000


def test_skips_without_end_are_bounded(strides: list[int]) -> None:
    """The total of strides stays within the bound for 4000 skips in a row."""
    run = history([(65536.0, True)] * 4000)
    Simulator(run).run(Setting("fixed", 65536.0))
    assert sum(strides) <= bound(strides)


def test_no_more_updates_are_skipped_than_there_are() -> None:
    """The band of a policy that skips every update ends at their number."""
    skips = Simulator(history([(65536.0, True)] * 300)).run(Setting("fixed", 65536.0)).skips
    assert (skips.expected, skips.high) == (300, 300)


@pytest.mark.usefixtures("strides")
def test_both_ways_of_reading_count_alike() -> None:
    """The expected number of skips is midway between both readings, although only one of them takes many strides."""
    run = history([(65536.0, False)] * 2000)
    found = Simulator(run).run(Setting("fixed", 2.0**100))
    assert found.skips.expected == pytest.approx(1000, rel=0.01)
