"""What the suite leaves out with the mark `rare`, and all that two engines can be asked for."""

from __future__ import annotations

from suites import passes


def test_what_is_rare_holds() -> None:
    """Each test marked with `rare` passes: the others of a kind, and storage on PostgreSQL."""
    assert (
        passes("alerting", "architecture", "files", "server", marked="rare", EVERYTHING="1") > 100
    )


def test_both_engines_answer_alike() -> None:
    """All of six runs in every view, the simulator's answers among it, is the same from both."""
    assert passes("server/test_engines_alike.py", EVERYTHING="1") == 1
