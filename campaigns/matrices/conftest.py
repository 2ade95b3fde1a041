"""The suite's browser fixtures."""

from conftest import browser, documentation, kept_browser, named_browser, new_reader, own_port
from web.conftest import reader, seat, served


__all__ = [
    "browser",
    "documentation",
    "kept_browser",
    "named_browser",
    "new_reader",
    "own_port",
    "reader",
    "seat",
    "served",
]
