"""The divergence rule on simulated losses: diverging ones are found, healthy ones are not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis.rules.diverged import divergence
from ampmon_server.model.aggregates import scalars
from ampmon_server.model.aggregates.merging import Cells, starts_of
from ampmon_server.model.case import ScalerCase
from ampmon_server.model.scale_policy import ScalePolicy
from ampmon_server.model.series import Floats
from made_cases import case, found, joined_samples, samples_of, scaler, trained
from made_series import START, empty


Loss = Callable[[Floats, np.random.Generator], Floats]
UPDATES = st.sampled_from([(120, 1), (400, 1), (3000, 16)])
"""(updates of the run, updates per cell)."""


def cells(values: Floats, together: int = 1) -> Cells:
    """A loss with one value per update, ``together`` updates per cell."""
    rows = np.zeros(len(values), scalars.ROWS)
    rows["step"] = np.arange(len(values))
    rows["time"], rows["user_step"], rows["value"] = START + rows["step"], -1, values
    made = scalars.of_rows(rows)
    return scalars.LAYOUT.merge(made, starts_of(made["first"] // together))


def falling(
    part: Floats, draws: np.random.Generator, noises: tuple[float, ...] = (0.02, 0.1, 0.3)
) -> Floats:
    """From 2.3 to 0.3 in the first tenth of the run, with noise. ``part`` is the elapsed fraction of the run."""
    noise = draws.choice(noises)
    return 0.3 + 2.0 * np.exp(-part * 15) + draws.normal(0, noise, len(part))


def cyclic(part: Floats, draws: np.random.Generator) -> Floats:
    """Each learning-rate cycle raises the loss by more than half of its fall."""
    phase = part * draws.integers(2, 9) % 1
    return falling(part, draws) + 1.2 * np.exp(-phase * 5) * (part > 0.1)


def warm_up(part: Floats, draws: np.random.Generator) -> Floats:
    """A large learning rate raises the loss for a while."""
    return falling(part, draws) + 0.9 * np.exp(-(((part - 0.25) / 0.06) ** 2))


def spiked(part: Floats, draws: np.random.Generator) -> Floats:
    """One batch in thirty is heavy, and so are the newest three."""
    heavy = draws.random(len(part)) < 1 / 30
    heavy[-3:] = True
    return falling(part, draws) + 50.0 * heavy


def opponent(part: Floats, draws: np.random.Generator) -> Floats:
    """A GAN generator's loss: it falls a little, then rises far as the discriminator learns."""
    dip = 0.3 * np.exp(-(((part - 0.15) / 0.1) ** 2))
    return 0.7 - dip + 2 * np.clip(part - 0.2, 0, 1) + draws.normal(0, 0.3, len(part))


def standing(part: Floats, draws: np.random.Generator) -> Floats:
    """A loss that never falls, as in reinforcement learning."""
    return np.convolve(draws.normal(0, 1, len(part)), np.ones(10) / 10, mode="same")


def creeping(part: Floats, draws: np.random.Generator) -> Floats:
    """A loss that rises again by a quarter of its fall."""
    return falling(part, draws) + 0.5 * part


@pytest.mark.parametrize("loss", [falling, cyclic, warm_up, spiked, creeping])
@given(UPDATES, st.integers(0, 10**6))
def test_no_healthy_loss_is_called_diverged(loss: Loss, of: tuple[int, int], seed: int) -> None:
    """A healthy loss is not called diverged, at any noise, run length or cell size."""
    updates, together = of
    values = loss(np.arange(updates) / updates, np.random.default_rng(seed))
    assert divergence(cells(values, together)) is None


def drifting(part: Floats, draws: np.random.Generator) -> Floats:
    """A random walk."""
    return np.cumsum(draws.normal(0, 1, len(part)))


@pytest.mark.parametrize(("loss", "most"), [(standing, 3), (opponent, 2), (drifting, 10)])
def test_losses_that_drift_are_rarely_called_diverged(loss: Loss, most: int) -> None:
    """Of 300 flat, adversarial or random-walk losses, at most ``most`` are called diverged."""
    draws = np.random.default_rng(0)
    lengths = [(120, 1), (400, 1), (3000, 16)] * 100
    runs = [cells(loss(np.arange(n) / n, draws), together) for n, together in lengths]
    assert sum(divergence(run) is not None for run in runs) <= most


def jumped(values: Floats, after: Floats, draws: np.random.Generator) -> Floats:
    """A jump back to the initial loss."""
    return np.where(after >= 0, 2.3 + draws.normal(0, 0.2, len(values)), values)


def exploded(values: Floats, after: Floats, draws: np.random.Generator) -> Floats:
    """Growth by a factor of e every two updates, at most e**14."""
    return np.abs(values) * np.exp(np.clip(after / 2, 0, 14))


def ended(values: Floats, after: Floats, draws: np.random.Generator) -> Floats:
    """The loss becomes NaN."""
    return np.where(after >= 0, np.nan, values)


@pytest.mark.parametrize("rise", [jumped, exploded, ended])
@given(UPDATES, st.integers(0, 10**6), st.floats(0.3, 0.8))
@example((400, 1), 736231, 0.453125)  # the noise hides the first updates of the rise
def test_a_loss_that_rises_and_stays_is_found_at_its_step(
    rise: Callable[[Floats, Floats, np.random.Generator], Floats],
    of: tuple[int, int],
    seed: int,
    at: float,
) -> None:
    """The reported step is within five cells and a dozen updates of the rise, with the levels before and after it."""
    (updates, together), draws = of, np.random.default_rng(seed)
    step = np.arange(updates)
    values = rise(falling(step / updates, draws, (0.02, 0.1)), step - int(at * updates), draws)
    result = divergence(cells(values, together))
    assert result is not None
    assert abs(result.first - at * updates) <= 5 * together + 12
    assert result.low < 0.9
    assert result.high > 1.5


@pytest.mark.parametrize("at", [300, 301, 315])
def test_the_first_nan_of_a_loss_is_found_within_its_cell(at: int) -> None:
    """A loss that stays NaN diverged at its first NaN, wherever that is in a cell of 16 updates."""
    step, draws = np.arange(600), np.random.default_rng(0)
    values = ended(falling(step / 600, draws), step - at, draws)
    result = divergence(cells(values, 16))
    assert result is not None
    assert result.first == at


def test_a_rise_is_over_once_the_loss_has_fallen_again() -> None:
    """A divergence is reported while the loss stays high, and no longer once the loss has recovered."""
    step, draws = np.arange(600), np.random.default_rng(0)
    values = jumped(falling(step / 600, draws), step - 300, draws)
    assert divergence(cells(values[:400])) is not None
    recovered = np.where(step > 450, 0.3, values)
    assert divergence(cells(recovered)) is None


def test_a_dip_after_an_explosion_is_no_return() -> None:
    """A loss that explodes and dips for seven updates before it stays high has diverged where it exploded."""
    step, draws = np.arange(291), np.random.default_rng(0)
    high = np.where(step < 151, 17.0, np.where((step > 156) & (step < 164), 1.8, 2.5))
    values = np.where(step < 146, 1.5 + 1.0 * np.exp(-step / 60), high)
    seen = divergence(cells(values + draws.normal(0, 0.1, 291)))
    assert seen is not None
    assert seen.first == 146


def diverged(run: ScalerCase, to: float = 2.6, **logged: Cells) -> Finding:
    """The `diverged` finding of a run whose loss jumps at step 300."""
    step, draws = np.arange(500), np.random.default_rng(0)
    loss = cells(
        np.where(step < 300, 0.3 + 2 * np.exp(-step / 30), to) + draws.normal(0, 0.05, 500)
    )
    of = case(run, logged={"loss": loss, **logged})
    return next(each for each in found(of) if each.rule == "diverged")


@pytest.mark.parametrize(("to", "severity"), [(1.9, "warning"), (2.6, "critical")])
def test_a_calm_scale_is_no_cause(to: float, severity: str) -> None:
    """Without skips or scale changes near the rise, the finding says so, and names a norm or logged value that rose."""
    rate = cells(np.where(np.arange(500) < 300, 1e-3, 1.0))
    near = joined_samples([samples_of([250, 270, 290], {0: 1.0}), samples_of([310, 330], {6: 1.0})])
    run = trained(lambda step, scale: False, 500, samples=near)
    finding = diverged(run, to, lr=rate)
    assert (finding.first_step, finding.last_step, finding.severity) == (300, 499, severity)
    for words in (
        "At step 300 it rose",
        "The scale stayed at 65\u202f536 = 2¹⁶, and no step was skipped there",
        "The gradient norm was 64 times the median before",
        "The logged lr had risen from 0.001 to 1 there",
    ):
        assert words in finding.explanation
    assert "checkpoint saved before step 300" in finding.fix


def test_skips_and_growths_beside_the_rise_are_reported_with_their_layer() -> None:
    """The finding names the skips near the rise with the change of scale, and a growth just before the rise."""
    run = trained(lambda step, scale: step in {290, 292}, 500)
    assert "2 steps were skipped there, the first at step 290" in diverged(run).explanation
    assert "the scale went from 65\u202f536 = 2¹⁶ to 16\u202f384 = 2¹⁴" in diverged(run).explanation
    grown = trained(lambda step, scale: False, 500, policy=ScalePolicy(growth_interval=298))
    assert "The scale had grown to 131\u202f072 = 2¹⁷ at step 297" in diverged(grown).explanation


def test_a_run_without_updates_is_judged_by_its_loss() -> None:
    """The finding of a run without updates does not mention a scale."""
    assert "scale" not in diverged(scaler(empty())).explanation


def test_what_began_first_is_the_cause() -> None:
    """NaN skips that begin with the divergence are the finding and mention it; before later ones, the divergence is."""
    step = np.arange(400)
    loss = cells(np.where(step < 300, 0.3 + 2 * np.exp(-step / 30), np.nan))
    for first, rule in ((300, "nan_not_overflow"), (310, "diverged")):
        run = trained(lambda step, scale, of=first: step >= of, 400, cause="nan")
        (only, *_) = found(case(run, logged={"loss": loss}))
        assert only.rule == rule
        assert "The loss diverged at step 300: not finite" in f"{only.title}. {only.explanation}"
