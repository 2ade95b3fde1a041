"""One screenshot, a page that reports an error, and a recording. `make screenshots` makes all of them."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser

from campaigns.pictures.__main__ import IMAGES, Photographer
from campaigns.pictures.drawn import LIMITS
from campaigns.pictures.recorded import animated, frame
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
    """A screenshot is a PNG of the phone's width, and an error in the console is reported."""
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


FRAMES_OF = """async data => {
    const type = "image/webp";
    const response = await fetch(`data:${type};base64,${data}`);
    const decoder = new ImageDecoder({type, data: await response.arrayBuffer()});
    await decoder.tracks.ready;
    const count = decoder.tracks.selectedTrack.frameCount;
    const {image} = await decoder.decode({frameIndex: count - 1});
    return [count, image.codedWidth, image.codedHeight, image.duration / 1000];
}"""


def test_a_browser_plays_a_recording(browser: Browser, tmp_path: Path) -> None:
    """Chromium plays both frames of a recording, and those in docs/img have at most 2 MB each."""
    (tmp_path / "page.html").write_text("<h1>0</h1>")
    with browser.new_page(viewport={"width": 640, "height": 480}) as page:
        page.goto((tmp_path / "page.html").as_uri())  # a decoder needs a secure context
        frames = [frame(page)]
        page.evaluate("document.body.textContent = 1")
        frames.append(frame(page))
        animated(frames, recording := tmp_path / "recording.webp", 500)
        data = base64.b64encode(recording.read_bytes()).decode()
        assert page.evaluate(FRAMES_OF, data) == [2, 640, 480, 500]

    assert all(path.stat().st_size <= 2_000_000 for path in IMAGES.glob("*.webp"))


def test_the_limits_of_the_number_line_are_those_of_fp16() -> None:
    """The limits of the number line are fp16's smallest, smallest normal and largest number."""
    of = torch.finfo(torch.float16)

    assert list(LIMITS) == [of.smallest_normal * of.eps, of.smallest_normal, of.max]
