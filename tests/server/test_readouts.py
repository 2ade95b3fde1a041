"""The words beside the numbers of a run."""

from __future__ import annotations

import math
import re
from typing import Any

from starlette.testclient import TestClient

from ampmon_server.model.readouts import (
    RECORDING,
    TRAINING,
    budget_advice,
    budget_words,
    choices,
    health_words,
    interval_words,
)
from ampmon_server.model.words import NONE
from batches import Trainer


def test_the_interval_in_force_is_shown_if_the_run_reports_it() -> None:
    """The sampling interval is shown in words, and nothing if it is unknown."""
    assert interval_words({"sampling_interval": None}) == ""
    assert interval_words({"sampling_interval": 1}) == "every step"
    assert interval_words({"sampling_interval": 128}) == "every 128 steps"


def test_the_budget_is_named_and_whether_it_is_exceeded() -> None:
    """A fixed interval has no budget."""
    assert budget_words({"budget": None, "over_budget": False}) == ""
    assert budget_words({"budget": 0.01, "over_budget": False}) == "budget 1\u202f%"
    assert (
        budget_words({"budget": 0.005, "over_budget": True})
        == "over the budget of 0.5\u202f% at the recent rate"
    )


def test_one_line_shows_lost_records_and_the_cost() -> None:
    """The line says whether records were lost and what the monitor cost."""
    running = {"status": "running", "lost_records": 0, "overhead": 0.008}
    assert health_words(running) == "Recording, 0 lost, 0.8\u202f% overhead"
    assert (
        health_words({"status": "finished", "lost_records": 3, "overhead": None})
        == "Recorded, 3 lost"
    )


def test_a_monitor_over_its_budget_says_what_to_change() -> None:
    """A monitor within its budget, or without one, says nothing."""
    over = {"over_budget": True, "budget": 0.01, "sampling_interval": 128}
    pattern = r"budget of 1\u202f% .* one step in 128.*Config\(budget=\)"
    assert re.search(pattern, budget_advice(over))
    assert budget_advice({"over_budget": False, "budget": 0.01, "sampling_interval": 8}) == ""
    assert budget_advice({"over_budget": True, "budget": None, "sampling_interval": 1}) == ""


def stream(rank: int, scaler: str = "default") -> dict[str, Any]:
    return {"stream": f"{scaler} {rank}", "rank": rank, "scaler": scaler}


def test_each_rank_and_each_scaler_is_offered_once() -> None:
    """Ranks are in order whatever their scalers. A scaler is offered by its first stream."""
    run = {"updates": 8, "streams": [stream(10), stream(2), stream(2, "critic"), stream(0)]}
    scalers, ranks = (each["options"] for each in choices(run, 8))
    assert scalers == [["default 10", "default"], ["critic 2", "critic"]]
    assert ranks == [["", "all ranks"], ["0", "rank 0"], ["2", "rank 2"], ["10", "rank 10"]]


def test_a_rank_of_which_not_all_is_drawn_says_how_much_is() -> None:
    """If a run has more updates than are drawn of one rank, the choice says how many are."""
    _, ranks = choices({"updates": 32_769, "streams": [stream(1)]}, 32_768)
    assert ranks["options"][1] == ["1", "rank 1, its newest 32\u202f768 steps"]


def test_a_run_without_steps_has_no_numbers_yet(client: TestClient, send) -> None:
    """A dash stands for what is not known, and nothing can be copied."""
    trainer = Trainer()
    send(trainer.batch())
    numbers = numbers_of(client, trainer)

    assert list(numbers) == [*TRAINING, *RECORDING]
    assert {key for key, each in numbers.items() if each["value"] == NONE} == {
        *("scale", "underflow", "headroom", "overhead")
    }
    assert (numbers["skipped"]["value"], numbers["skipped"]["more"]) == ("0 of 0", "")
    assert numbers["underflow"]["more"] == numbers["headroom"]["more"] == ""
    assert (numbers["newest"]["value"], numbers["newest"]["since"]) == ("none", None)
    assert {numbers[key]["exact"] for key in ("scale", "underflow", "newest")} == {None}


def test_the_numbers_of_a_run_are_in_words_and_with_all_digits(client: TestClient, send) -> None:
    """The page shows an age in place of the newest time. JSON has no infinity, so its name is copied."""
    trainer = Trainer()
    send(trainer.batch(trainer.updates(4, skipped=[1], sampled=[0])))
    numbers = numbers_of(client, trainer)
    run = client.get(f"/api/v1/runs/{trainer.run_id}").json()

    assert numbers["scale"]["value"] == "1\u202f024 = 2¹⁰"
    assert (numbers["scale"]["exact"], numbers["skipped"]["exact"]) == (1024.0, 1)
    assert (numbers["skipped"]["value"], numbers["skipped"]["more"]) == ("1 of 4", "25\u202f%")
    assert numbers["underflow"]["exact"] == run["subnormal_fraction"]
    assert numbers["underflow"]["more"].startswith("subnormal, 10\u202f%")
    assert numbers["headroom"]["more"] == "at most"
    assert (numbers["records"]["value"], numbers["records"]["more"]) == ("4 of 4", "0 lost")
    newest = numbers["newest"]
    assert (newest["since"], newest["more"]) == (run["last_time"], "step 3")
    assert newest["exact"] == "2026-09-21T14:13:20.150Z"

    send(trainer.batch([trainer.update(scale=math.inf)]))
    assert numbers_of(client, trainer)["scale"]["exact"] == "Infinity"


def numbers_of(client: TestClient, trainer: Trainer) -> dict[str, dict[str, Any]]:
    numbers: dict[str, dict[str, Any]]
    numbers = client.get(f"/api/v1/runs/{trainer.run_id}").json()["numbers"]
    return numbers
