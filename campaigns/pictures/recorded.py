"""Records the page during the demo, as an animated WebP in each theme. Pillow encodes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Literal

from PIL import Image
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
"""The number of updates shown: the scale's first growth, and some skips."""


def record(browser: Browser, server: Server, paths: Mapping[Theme, Path]) -> list[str]:
    """Record a training from its first updates on, and return the pages' problems. Blocks for minutes."""
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
        animated(frames[theme], path, FRAME_MS)
    return [
        f"{theme}: {each}" for theme, reader in readers.items() for each in reader.page_errors()
    ]


def _reached(server: Server, run: str, least: int) -> bool:
    return bool(server.get(f"/runs/{run}")["updates"] >= least)


def frame(page: Page) -> bytes:
    return page.screenshot()


def animated(frames: Sequence[bytes], path: Path, frame_ms: int) -> None:
    """Write PNGs of one size as a lossy WebP that loops forever."""
    first, *rest = (Image.open(BytesIO(each)).convert("RGB") for each in frames)
    first.save(
        path,
        save_all=True,
        append_images=rest,
        duration=frame_ms,
        loop=0,
        quality=QUALITY,
        method=6,
    )
