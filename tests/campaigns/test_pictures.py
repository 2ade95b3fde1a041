"""One picture of one view, and a page that reports an error. `make screenshots` takes all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from campaigns.pictures.__main__ import Photographer
from campaigns.pictures.shots import PHONE, SHOTS, Shot
from posted import PostedRun
from serving import Server


PNG = b"\x89PNG\r\n\x1a\n"


def test_a_view_is_pictured_and_an_error_on_the_page_is_reported(
    new_server: Callable[..., Server],
    browser: Browser,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A phone's picture of the list of runs is a PNG of that width; an error in the console is reported."""
    server = new_server()
    PostedRun(server).updates(3)
    photographer = Photographer(browser, server, {})
    path = tmp_path / "list.png"

    assert photographer.take("list", PHONE[0], "dark", path) == []
    head = path.read_bytes()[:24]
    assert head.startswith(PNG)
    assert int.from_bytes(head[16:20], "big") % PHONE[0] == 0

    planted = Shot(lambda reader, runs: reader.ask("console.error('planted')"), whole=False)
    monkeypatch.setitem(SHOTS, "planted", planted)
    (quarrel,) = photographer.take("planted", PHONE[0], "light", path)
    assert "planted" in quarrel
