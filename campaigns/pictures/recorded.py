"""A recording of the page during the demo, as an animated WebP in each theme. Chromium encodes the frames."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Page

from campaigns.pictures.trained import training
from serving import Server
from web.reader import Reader, enter
from web.views import settle


Theme = Literal["light", "dark"]
SIZE = (960, 840)
QUALITY = 50
FRAMES, FRAME_MS = 40, 500
UPDATES = 700
"""How many of the training's updates are shown: the climb of the scale, and some skips."""


def record(browser: Browser, server: Server, paths: Mapping[Theme, Path]) -> list[str]:
    """Record a training from its first updates on, and return what the pages quarrelled about. Blocks for minutes."""
    readers = {theme: Reader(enter(browser, server), server) for theme in paths}
    frames: dict[Theme, list[bytes]] = {theme: [] for theme in paths}
    with training(server):
        running = "/runs?status=running"
        run = readers["light"].wait("a run", lambda: server.get(running)["runs"])[0]["run_id"]
        for theme, reader in readers.items():
            reader.theme(theme)
            reader.size(*SIZE)
            reader.open(f"#/runs/{run}")
            settle(reader)
        for number in range(FRAMES):
            for theme, reader in readers.items():
                least = (number + 1) * UPDATES // FRAMES
                reader.wait("updates", partial(_reached, server, run, least))
                frames[theme].append(frame(reader.page))
    for theme, path in paths.items():
        print(path)
        path.write_bytes(animated(frames[theme], *SIZE, FRAME_MS))
    return [f"{theme}: {each}" for theme, reader in readers.items() for each in reader.quarrels()]


def _reached(server: Server, run: str, least: int) -> bool:
    return bool(server.get(f"/runs/{run}")["updates"] >= least)


def frame(page: Page) -> bytes:
    """What the page shows, as a lossy WebP."""
    session = page.context.new_cdp_session(page)
    how = {"format": "webp", "quality": QUALITY}
    data: str = session.send("Page.captureScreenshot", how)["data"]
    session.detach()
    return base64.b64decode(data)


def animated(frames: Sequence[bytes], width: int, height: int, frame_ms: int) -> bytes:
    """Lossy WebPs of one size as one that plays for ever. The container: RFC 9649, 2.7."""
    size = _u24(width - 1) + _u24(height - 1)
    parts = [_chunk(b"VP8X", b"\2\0\0\0" + size), _chunk(b"ANIM", bytes(6))]
    for each in frames:
        head = bytes(6) + size + _u24(frame_ms) + b"\2"
        parts.append(_chunk(b"ANMF", head + _chunk(b"VP8 ", _picture(each))))
    return _chunk(b"RIFF", b"WEBP" + b"".join(parts))


def _picture(webp: bytes) -> bytes:
    """The data of its chunk "VP8 "; chunks begin after "RIFF", a size and "WEBP"."""
    place = 12
    while webp[place : place + 4] != b"VP8 ":
        place += 8 + (length := int.from_bytes(webp[place + 4 : place + 8], "little")) + length % 2
    length = int.from_bytes(webp[place + 4 : place + 8], "little")
    return webp[place + 8 : place + 8 + length]


def _chunk(name: bytes, data: bytes) -> bytes:
    return name + len(data).to_bytes(4, "little") + data + bytes(len(data) % 2)


def _u24(number: int) -> bytes:
    return number.to_bytes(3, "little")
