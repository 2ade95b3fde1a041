"""Every fact of storage on PostgreSQL: the suite runs those on SQLite that both engines keep by the same statements."""

from __future__ import annotations

from suites import passes


def test_each_fact_of_storage_holds_on_postgresql() -> None:
    """Each test marked with `storage` or `engines` passes, and all runs, views and queries get the same bytes."""
    assert passes("server", chosen="postgresql or alike", ENGINES="all") > 150
