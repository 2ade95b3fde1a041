"""The code that trains with other frameworks, on a script that needs none of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from campaigns import frameworks
from recording import recordings
from serving import free_port


def test_a_script_is_watched_and_its_weights_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recording has all updates, its skips match a count without ampmon, and differing weights are named."""
    monkeypatch.setattr(frameworks, "PYTHON", Path(sys.executable))
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": free_port()}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    folder = tmp_path / "watched"

    script = str(frameworks.HERE / "train_ddp.py")
    weights, (steps,) = frameworks.train(folder, script, str(folder), shim="", watched=True)

    (recorded,) = recordings(folder / "ampmon")
    assert len(recorded.updates) == 12
    assert 0 < sum(frameworks.skips(recorded)) == 12 - steps
    frameworks.assert_same(weights, weights)
    with pytest.raises(AssertionError, match=r"0\.weight"):
        frameworks.assert_same(weights, {name: each + 1 for name, each in weights.items()})
