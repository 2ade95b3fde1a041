"""The tests marked `rare`, which the suite leaves out, and the complete comparison of the two database engines."""

from __future__ import annotations

from device import emulated
from older_torch import EMULATES
from suites import passes


def test_what_is_rare_holds() -> None:
    """Every test marked `rare` passes, including storage on PostgreSQL."""
    assert passes("", marked="rare") > 100


@EMULATES
def test_what_is_rare_holds_on_the_emulated_device() -> None:
    """The recipe that the suite leaves out trains as with the stock scaler on the emulated device."""
    assert passes("device/recipes_suite.py", marked="rare", TEST_DEVICE=emulated.NAME) == 1


def test_both_engines_answer_alike_and_every_token_is_held_to_its_scopes() -> None:
    """Both engines answer alike about six runs, simulations included; every route rejects wrong token scopes."""
    assert passes("server/test_engines_alike.py", "server/test_access.py", EVERYTHING="1") > 10
