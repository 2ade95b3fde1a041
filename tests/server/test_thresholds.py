"""Thresholds given on the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ampmon import wire
from ampmon.errors import ConfigurationError
from ampmon_server.cli.serve_settings import thresholds_of
from ampmon_server.model.thresholds import Thresholds
from batches import Trainer
from serving import Server


def test_what_is_given_is_changed_and_nothing_else() -> None:
    """Given levels and numbers replace their defaults, ``never`` turns a level off, and the rest stays."""
    given = thresholds_of(["skip_rate.warning=0.02", "flushed.notice=never", "skip_window=500"])
    assert given.skip_rate == Thresholds().skip_rate._replace(warning=0.02)
    assert given.flushed == Thresholds().flushed._replace(notice=None)
    assert given.skip_window == 500
    assert given.subnormal == Thresholds().subnormal
    assert thresholds_of([]) == Thresholds()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("skip_rat.warning=1", "no threshold is called 'skip_rat'; there are skip_rate, "),
        ("severity.warning=1", "no threshold is called 'severity'"),
        ("skip_rate=0.1", "write skip_rate.notice, skip_rate.warning or skip_rate.critical"),
        ("skip_window.warning=1", "skip_window has no levels; write skip_window=1000"),
        ("skip_window=1.5", "'1.5' is not a whole number of at least 0"),
        ("skip_rate.warning=nan", "'nan' is not a number of at least 0"),
        ("skip_rate.warning", "'' is not a number of at least 0"),
        ("skip_rate.warning=0.2", "0.002, 0.2, 0.05 do not rise from notice to critical"),
    ],
)
def test_what_is_no_threshold_is_refused(given: str, says: str) -> None:
    """An unknown name, level or value is refused with a message that says what is wrong or valid."""
    with pytest.raises(ConfigurationError) as refused:
        thresholds_of([given])
    assert says in str(refused.value)
    assert str(refused.value).startswith("--threshold ")


def test_a_server_judges_by_what_it_is_given(new_server: Callable[..., Server]) -> None:
    """A skip rate above the critical level given on the command line is a critical finding."""
    thresholds = (
        "skip_rate.notice=0.0001",
        "skip_rate.warning=0.0002",
        "skip_rate.critical=0.0005",
    )
    options = [f"--threshold={each}" for each in thresholds]
    server = new_server(options=["--no-judging", *options])
    trainer = Trainer()
    batch = trainer.batch(trainer.updates(1000, skipped=(300, 700)))
    headers = {"Content-Type": "application/msgpack"}
    server.request("POST", "/api/v1/ingest", body=wire.encode(batch), headers=headers)
    diagnosis: dict[str, Any] = server.request(
        "GET", f"/api/v1/runs/{trainer.run_id}/diagnosis"
    ).json()
    found = {each["rule"]: each["severity"] for each in diagnosis["findings"]}
    assert found["skip_rate"] == "critical"
