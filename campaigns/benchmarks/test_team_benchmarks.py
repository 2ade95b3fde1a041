"""The benchmarks of a team at a tiny size: they run, and what they say is so."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.team import access, effort, held, rejected, tokens
from benchmarks.team.processes import working
from serving import Server


TINY = effort.QUICK._replace(
    access_rounds=2,
    turns={20: 1},
    checks=50,
    flood_rounds=1,
    flood_per_s=40,  # whom a server answers at once
    ingest_s=0.3,
    streams=3,
    clients=2,
    held_s=3.0,
)


def test_asking_who_sends_is_measured_for_each_kind_of_token(tmp_path: Path) -> None:
    """The guard's time and its share are there for the server's own token and for one that was made."""
    rows = access.measure(tmp_path, TINY)

    assert [row["token"] for row in rows] == [access.OWN, access.MADE]
    assert all(0 < row["check_us"] < row["batch_us"] for row in rows)
    assert all(row["ratio"] > 0 for row in rows)


def test_a_flood_is_refused_while_ingest_goes_on(tmp_path: Path) -> None:
    """Every answer to a token that is not good is a refusal, and updates are taken meanwhile."""
    rows = rejected.measure(tmp_path, TINY)

    assert [row["token"] for row in rows] == ["strange", "made up", "revoked"]
    assert all(row["refused_per_s"] > 0 and row["beside_per_s"] > 0 for row in rows)
    assert {row["otherwise_answered"] for row in rows} == {0}


def test_an_answer_that_is_no_refusal_is_counted_apart(server: Server) -> None:
    """A token that is good is not refused, and the flood says so."""
    good = tokens.make(server.url, server.token, "good")

    with working("benchmarks.team.flooding", server.url, good, "200") as (_, counted):
        pass

    assert '"refused": 0,' in counted[0]


def test_streams_and_clients_are_held(tmp_path: Path) -> None:
    """Each stream is told of updates that clients send, and the server's memory is looked at meanwhile."""
    (row,) = held.measure(tmp_path, TINY)

    assert row["fewest_told"] > 0
    assert row["updates_per_s"] > 0
    assert (row["streams_ended"], row["clients_failed"]) == (0, 0)
    assert row["first_third_mb"] > 10


@pytest.mark.parametrize(("last", "flat"), [(104.0, True), (106.0, False)])
def test_memory_that_grows_by_more_than_a_twentieth_is_not_flat(last: float, flat: bool) -> None:
    """The medians of the first and last third are compared; one that served to the end is as it must be if flat."""
    seen = [held.Held(mb, mb) for mb in (100.0, 100.0, 102.0, 102.0, last, last)]

    assert held.holds(seen, held.Heard(9, 3, 0), failed=0) == flat
