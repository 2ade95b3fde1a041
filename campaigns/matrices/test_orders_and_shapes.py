"""Every wrong order of a training loop's calls, and every shape of a sampled gradient."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe import test_sampling
from scaler import test_wrong_orders


@pytest.mark.filterwarnings("ignore::ampmon.AmpmonWarning")
@pytest.mark.parametrize("loop", test_wrong_orders.RIGHT)
def test_each_wrong_order_gets_a_lint_or_is_harmless(data_directory: Path, loop: str) -> None:
    """A lint or torch's own exception reports the wrong order, or the weights match the right order bit for bit."""
    test_wrong_orders.check_wrong_orders(data_directory, loop, 1)


@pytest.mark.parametrize("name", test_sampling.OTHER_SHAPES)
def test_intervals_cover_what_they_say(name: str) -> None:
    """Nominal 95 % intervals of a default sample hold the true share in 93 to 97 % of samples; errors are unbiased."""
    test_sampling.test_intervals_cover_what_they_say(name)
