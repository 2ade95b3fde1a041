"""The team benchmarks at a tiny size: they run, and their results are right."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.processes import working
from benchmarks.team import QUICK, access, held, offered, rejected, tokens
from serving import Server


TINY = QUICK._replace(
    access_rounds=2,
    turns={20: 1},
    checks=50,
    flood_rounds=1,
    flood_per_s=40,  # few enough to answer at once
    ingest_s=0.3,
    streams=3,
    clients=2,
    held_s=3.0,
    offering=3,
    pages=2,
    offered_s=2.0,
)


def test_asking_who_sends_is_measured_for_each_kind_of_token(tmp_path: Path) -> None:
    """The token check has a time and a share, for the server's own token and for a created one."""
    rows = access.measure(tmp_path, TINY)

    assert [row["token"] for row in rows] == [access.OWN, access.MADE]
    for row in rows:  # a difference of times: on a busy machine it may be anything
        assert row["share"] == pytest.approx(row["check_us"] / row["batch_us"], abs=0.01)
    assert all(row["ratio"] > 0 for row in rows)


def test_a_flood_is_refused_while_ingest_goes_on(tmp_path: Path) -> None:
    """The server rejects every request with an invalid token, and takes updates meanwhile."""
    rows = rejected.measure(tmp_path, TINY)

    assert [row["token"] for row in rows] == ["strange", "made up", "revoked"]
    assert all(row["refused_per_s"] > 0 and row["beside_per_s"] > 0 for row in rows)
    assert {row["otherwise_answered"] for row in rows} == {0}


def test_an_answer_that_is_no_refusal_is_counted_apart(server: Server) -> None:
    """Answers to a valid token do not count as refused."""
    good = tokens.make(server.url, server.token, "good")

    with working("benchmarks.team.flooding", server.url, good, 200) as flood:
        pass

    assert '"refused": 0,' in flood.counted


def test_streams_and_clients_are_held(tmp_path: Path) -> None:
    """Each stream receives updates that clients send, while the server's memory is measured."""
    (row,) = held.measure(tmp_path, TINY)

    assert row["fewest_told"] > 0
    assert row["updates_per_s"] > 0
    assert (row["streams_ended"], row["clients_failed"]) == (0, 0)
    assert row["first_third_mb"] > 10


def test_what_is_offered_is_taken_and_stored(tmp_path: Path) -> None:
    """The server accepts and stores everything that a few clients offer."""
    (row,) = offered.measure(tmp_path, TINY)

    assert row["offered_per_s"] == 15
    assert row["taken_per_s"] > 0
    assert 0 < row["p50_ms"] <= row["p99_ms"]
    assert (row["lost"], row["clients_failed"], row["streams_ended"]) == (0, 0, 0)
    assert row["holds"] == "no"


@pytest.mark.parametrize(
    ("per_s", "p99_ms", "lost", "held"),
    [(250, 1000, 0, True), (249, 9, 0, False), (900, 1001, 0, False), (900, 9, 10, False)],
)
def test_a_load_is_carried_if_all_of_it_is(
    per_s: float, p99_ms: float, lost: int, held: bool
) -> None:
    """A rate too low, a latency too high or a loss is each enough to miss the bar."""
    assert offered.holds(per_s, p99_ms, lost, failed=0) == held


@pytest.mark.parametrize(("last", "flat"), [(104.0, True), (106.0, False)])
def test_memory_that_grows_by_more_than_a_twentieth_is_not_flat(last: float, flat: bool) -> None:
    """Growth compares the medians of the first and last third; over 5 % misses the bar."""
    seen = [held.Held(mb, mb) for mb in (100.0, 100.0, 102.0, 102.0, last, last)]

    assert held.holds(seen, held.Heard(9, 3, 0), failed=0) == flat
