"""What the suite leaves out with the mark `rare`, and all that two engines can be asked for."""

from __future__ import annotations

from device import emulated
from older_torch import EMULATES
from suites import passes


def test_what_is_rare_holds() -> None:
    """Each test marked with `rare` passes: the others of a kind, and storage on PostgreSQL."""
    assert passes("", marked="rare") > 100  # in whichever folder


@EMULATES
def test_what_is_rare_holds_on_the_emulated_device() -> None:
    """The recipe that the suite leaves out trains as with the stock scaler."""
    assert passes("device/recipes_suite.py", marked="rare", TEST_DEVICE=emulated.NAME) == 1


def test_both_engines_answer_alike_and_every_token_is_held_to_its_scopes() -> None:
    """All of six runs, simulated too, is the same from both engines; every route is asked with every kind of token."""
    assert passes("server/test_engines_alike.py", "server/test_access.py", EVERYTHING="1") > 10
