"""The script that readers' browsers run is the one that was tested, or it is said, or nothing is served."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ampmon_server import assets
from ampmon_server.cli import main


def test_the_installed_script_is_the_one_that_was_tested() -> None:
    """Its version is listed, with the hash of what is served."""
    served = hashlib.sha256(assets.plotly_script().read_bytes()).hexdigest()

    assert assets.PLOTLY_SHA256[assets.plotly_version()] == served
    assert assets.check_plotly() is None


def test_a_script_that_was_changed_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A byte more in it, and a server does not start, and says in one line what to do."""
    changed = tmp_path / "plotly.min.js"
    changed.write_bytes(assets.plotly_script().read_bytes() + b" ")
    monkeypatch.setattr(assets, "plotly_script", lambda: changed)

    assert main(["serve", "--port", "0", "--data-dir", str(tmp_path / "data")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(assets.Tampered, match="pip install --force-reinstall"):
        assets.check_plotly()


def test_a_version_that_nobody_tested_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is served, and said."""
    monkeypatch.setattr(assets, "plotly_version", lambda: "7.99.0")

    assert "7.99.0" in (assets.check_plotly() or "")
