"""Builds the command that installs what is missing, from where ampmon itself was installed."""

from __future__ import annotations

import json
from contextlib import suppress
from importlib.metadata import distribution
from urllib.parse import urlsplit
from urllib.request import url2pathname


def install(extra: str) -> str:
    """Return "pip install 'ampmon[torch]'", or the same with the clone or wheel that ampmon came from."""
    return f"pip install '{place()}[{extra}]'"


def place() -> str:
    """Return what pip installs ampmon from: the clone or wheel that it came from, or its name."""
    with suppress(Exception):  # the hint is part of another message, and the record may be damaged
        # What pip records of a distribution installed from a URL.
        origin = json.loads(distribution("ampmon").read_text("direct_url.json") or "{}")
        if origin["url"].startswith("file:"):
            return url2pathname(urlsplit(origin["url"]).path)
    return "ampmon"
