"""Opens a browser at a one-time link through a file, because other users of a machine can read command lines."""

from __future__ import annotations

import html
import os
import tempfile
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path


_PAGE = """<!DOCTYPE html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={link}">
<title>ampmon</title>
<p><a href="{link}">Open ampmon</a></p>
"""


@contextmanager
def invitation(link: str, directory: Path) -> Iterator[Callable[[], object]]:
    """Write an HTML file to ``directory`` that redirects a browser to a link, and remove it at the end.

    Only its owner can read it. Yield what opens it.
    """
    handle, name = tempfile.mkstemp(prefix="open-", suffix=".html", dir=directory)  # mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(_PAGE.format(link=html.escape(link)))
        yield partial(webbrowser.open, Path(name).as_uri())
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)
