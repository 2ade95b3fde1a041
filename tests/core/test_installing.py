"""The command that installs what is missing names the folder or file that ampmon came from, if one is known."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest

from ampmon.system import installing


@pytest.mark.parametrize(
    ("record", "place"),
    [
        ('{"url": "file:///home/a%20b", "dir_info": {"editable": true}}', "/home/a b"),
        ('{"url": "file:///home/a.whl", "archive_info": {}}', "/home/a.whl"),
        ('{"url": "https://example.org/a.whl", "archive_info": {}}', "ampmon"),
        (None, "ampmon"),
        ("", "ampmon"),
        ("{", "ampmon"),
        ("null", "ampmon"),
        ('{"dir_info": {}}', "ampmon"),
        ('{"url": 5, "dir_info": {}}', "ampmon"),
    ],
)
def test_the_folder_is_what_pip_records(
    record: str | None, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a folder or file of this machine is named. A record that is missing or damaged is no error."""
    found = SimpleNamespace(read_text=lambda name: record)
    monkeypatch.setattr(installing, "distribution", lambda name: found)
    assert installing.install("torch") == f"pip install '{place}[torch]'"


def test_ampmon_need_not_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a distribution, as from a folder on the path, the hint names the package."""

    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(installing, "distribution", missing)
    assert installing.install("server") == "pip install 'ampmon[server]'"
