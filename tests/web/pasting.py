"""Pasting an error message into the documentation's search."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from pasted import PASTED
from web.reader import Reader


MESSAGES = (
    "traceback of a first step",
    "rich traceback in colour",
    "an exception at the end of a log",
    "upper case",
    "apex's line with one blank",
    "warning with its place",
    "fairseq's end",
    "other method",
    "one line among many",
    "ours, with the code",
)
"""One for each of the messages searched most often, by its name in pasted.toml."""


def to_its_fix(reader: Reader, name: str) -> None:
    """Go from a pasted message to its fix in two clicks, one of which opens the search. Fail if the fix is not seen."""
    page = reader.page
    text, entry = PASTED[name]
    page.evaluate("text => navigator.clipboard.writeText(text)", text)
    page.locator(".md-search__button").click()
    page.keyboard.press("Control+A")
    page.keyboard.press("Control+V")
    result = page.get_by_role("option").first
    expect(result).to_have_attribute("href", re.compile(f"/errors.html#{entry}$"))
    result.click()
    heading = page.locator(f"[id='{entry}']")
    expect(heading).to_be_in_viewport()
    expect(heading.locator("~ p", has_text=re.compile("^Fix\\. ")).first).to_be_in_viewport()
