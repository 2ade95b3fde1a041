"""What is wrong with how the page is laid out, told element by element. Knows no view."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page


_FAULTS = Path(__file__).with_name("layout.js").read_text()


def faults(page: Page) -> list[str]:
    """What sticks out of the window sideways, is cut off with no way to read it, or lies outside of its chart."""
    return list(page.evaluate(_FAULTS))
