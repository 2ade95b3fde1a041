"""Builds the command that installs what is missing, from where ampmon itself was installed."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import urlsplit
from urllib.request import url2pathname

import msgspec


class _Origin(msgspec.Struct):
    """What pip records of a distribution installed from a URL. ``dir_info`` is set for a folder."""

    url: str
    dir_info: dict[str, object] | None = None


def install(extra: str) -> str:
    """Return "pip install 'ampmon[torch]'", or the same with the folder of the clone that ampmon came from."""
    place = "ampmon"
    with suppress(PackageNotFoundError, OSError, msgspec.DecodeError):
        written = distribution("ampmon").read_text("direct_url.json")
        origin = msgspec.json.decode(written or "", type=_Origin)
        if origin.dir_info is not None:
            place = url2pathname(urlsplit(origin.url).path)
    return f"pip install '{place}[{extra}]'"
