"""The soak's short form, and a server with a bug. `tests/campaigns/test_soak.py` is even shorter."""

from __future__ import annotations

import math
from pathlib import Path

from campaigns.soak.round import Plan, Round
from campaigns.soak.victims import Lives


PLANTED = "from campaigns.soak import planted; planted.plant()"
QUICK = Lives(trainer=(0.0, 0.8), sender=(0.0, 0.8), server=(0.0, 1.0))


def test_kills_and_lost_acknowledgements_lose_and_double_nothing(
    tmp_path: Path,
) -> None:
    """With each role killed ten times and answers lost, each record is stored once and unchanged."""
    plan = Plan(kills=10, limit_s=math.inf, lives=QUICK)
    tally = Round(tmp_path / "round", plan, "short").run()
    assert (tally.count.lost, tally.count.doubled, tally.count.problems) == (0, 0, [])
    assert tally.count.reported > 0


def test_a_server_that_acknowledges_too_early_is_found(
    tmp_path: Path,
) -> None:
    """A server that answers before it commits loses records when it is killed, and the soak counts them."""
    # Too few senders are killed to end the round by number.
    plan = Plan(kills=20, limit_s=8.0, rest_s=3.0, lives=QUICK, before=PLANTED)
    tally = Round(tmp_path / "round", plan, "planted").run()
    assert tally.count.lost > 0
