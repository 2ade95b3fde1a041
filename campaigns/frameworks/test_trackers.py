"""ampmon's values go into the user's own W&B or trackio run, which loses none of the user's rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from campaigns.frameworks import SET, use


def rows(folder: Path, script: str, *words: str, shim: str = "") -> list[dict[str, Any]]:
    """The tracker's rows, which a script prints after its training."""
    lines = use(folder, script, *words, shim=shim).stdout.splitlines()
    return [json.loads(line) for line in lines if line.startswith('{"')]


@pytest.mark.parametrize(
    ("how", "own"),
    [
        ("plain", [(update, update) for update in range(100)]),
        ("stepped", [(10 * update, update) for update in range(100)]),
        ("rare", [(place, 5 * place) for place in range(20)]),
    ],
)
def test_no_row_of_the_user_is_lost_to_wandb(
    tmp_path: Path, how: str, own: list[tuple[int, int]]
) -> None:
    """Each row that the script logged is in the run's file at the script's step, and so are ampmon's values."""
    found = rows(tmp_path, "use_wandb.py", how)
    assert [(row["_step"], row["loss"]) for row in found if "loss" in row] == own
    with_ours = [row for row in found if "amp/scale" in row]
    assert {row["amp/scale"] for row in with_ours} == {1024}
    assert len(with_ours) >= len(own) - 1  # where steps are given, the first two share a row
    assert "amp/subnormal_share" in with_ours[-1]


def test_ampmon_s_values_join_the_rows_of_a_trainer(tmp_path: Path) -> None:
    """W&B has everything that the Trainer reports, and some of its rows have the loss scale."""
    found = rows(tmp_path, "use_trainer.py", "wandb")
    logged = [row["train/global_step"] for row in found if "train/loss" in row]
    assert logged == [2, 4, 6]
    assert [row["amp/scale"] for row in found if "train/loss" in row and "amp/scale" in row]


@pytest.mark.parametrize(
    ("script", "name", "steps"),
    [
        (
            "use_lightning.py",
            "train_loss",
            [("trainer/global_step", 1), ("trainer/global_step", 3), ("trainer/global_step", 5)],
        ),
        ("use_accelerate.py", "loss", [("_step", step) for step in range(20)]),
    ],
)
def test_ampmon_s_values_join_the_rows_of_other_frameworks(
    tmp_path: Path, script: str, name: str, steps: list[tuple[str, int]]
) -> None:
    """W&B has everything that Lightning and Accelerate log, and some of those rows have the loss scale."""
    shim = script.removeprefix("use_").removesuffix(".py")
    logged = [row for row in rows(tmp_path, script, "wandb", shim=shim) if name in row]
    assert [row[key] for row, (key, _) in zip(logged, steps, strict=True)] == [
        step for _, step in steps
    ]
    assert [row for row in logged if "amp/scale" in row]


@pytest.mark.skipif(SET == "oldest", reason="trackio is younger")
def test_no_row_of_the_user_is_lost_to_trackio(tmp_path: Path) -> None:
    """trackio writes rows at once: each of the script's and of ampmon's rows is there at its step."""
    found = rows(tmp_path, "use_trackio.py")
    assert [(row["step"], row["loss"]) for row in found if "loss" in row] == [
        (update, update) for update in range(20)
    ]
    assert [row["step"] for row in found if "amp/scale" in row] == list(range(20))
