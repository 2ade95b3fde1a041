"""If a run cannot start, `init` warns once and training goes on; a later scaler may start the run."""

from __future__ import annotations

import resource
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import ampmon
from ampmon.spool import spools
from recording import recording


@contextmanager
def full_disk() -> Iterator[None]:
    """Make the system refuse every byte that this process writes to a file."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextmanager
def warned() -> Iterator[list[str]]:
    """Yield a list that receives the texts of ampmon's warnings at the end."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield messages
    messages += [str(each.message) for each in found if each.category is ampmon.AmpmonWarning]


def weights() -> list[float]:
    """Return the weights and the scale after two updates, the first of which is skipped."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0**10)
    for factor in (float("inf"), 1.0):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).sum() * factor
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        ampmon.log({"loss": loss})
    return [*model.weight.flatten().tolist(), scaler.get_scale()]


@pytest.mark.parametrize("trouble", ["full", "read-only", "in the way", "of others"])
def test_init_on_a_disk_that_takes_nothing_warns_and_trains(
    data_directory: Path, trouble: str
) -> None:
    """`init` on an unusable disk returns None and warns once; weights and scale equal those of a recorded run."""
    expected = weights()
    ampmon.finish()
    place = data_directory / "more"
    if trouble == "read-only":
        place = Path("/proc/ampmon")
    elif trouble == "in the way":
        place.touch()
    elif trouble == "of others":
        place.mkdir()
        place.chmod(0o777)
    with warned() as messages:
        if trouble == "full":
            with full_disk():
                run_id, trained = ampmon.init("vision", dir=place), weights()
        else:
            run_id, trained = ampmon.init("vision", dir=place), weights()
        ampmon.finish()

    assert run_id is None
    assert trained == expected
    (line,) = messages
    assert str(place) in line
    assert "AMPMON_DIR" in line


def test_a_scaler_begins_the_run_once_there_is_room(data_directory: Path) -> None:
    """Once there is room, the next scaler starts the run with the options of `init`; `log` alone does not."""
    with warned() as messages, full_disk():
        assert ampmon.init("vision", "baseline", tags=["a"]) is None
    ampmon.log({"loss": 1.0})
    assert spools(data_directory) == []
    with full_disk():
        weights()
    weights()
    ampmon.finish()
    attempt = recording(data_directory).attempt

    assert (attempt.project, attempt.name, attempt.tags) == ("vision", "baseline", ("a",))
    assert len(messages) == 1
