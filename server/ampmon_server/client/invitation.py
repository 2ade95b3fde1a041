"""Opens a browser at a one-time link through a file, because other users of a machine can read command lines."""

from __future__ import annotations

import html
import os
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


_PAGE = """<!DOCTYPE html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={link}">
<title>ampmon</title>
<p><a href="{link}">Open ampmon</a></p>
"""


class Invitation:
    """An HTML file that redirects a browser to a link. Only its owner can read it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self) -> None:
        webbrowser.open(self._path.as_uri())


@contextmanager
def invitation(link: str, directory: Path) -> Iterator[Invitation]:
    """Write an invitation to ``directory`` and remove it at the end."""
    handle, name = tempfile.mkstemp(prefix="open-", suffix=".html", dir=directory)  # mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(_PAGE.format(link=html.escape(link)))
        yield Invitation(Path(name))
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)
