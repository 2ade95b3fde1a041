"""Replaces the roles that figures name by a theme's colours, as the page does in the browser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


PREFIX = "role:"
COLOURS = ("color", "colorscale")
"""A string is a role only if its key has one of these endings. Elsewhere it may be a name that begins like a role."""


def resolve(figure: Any, roles: Mapping[str, Any], key: str = "") -> Any:
    """Return a copy of ``figure``, or of its part under ``key``, with a colour for every "role:name".

    ``roles`` is one theme of web/roles.json. Raises KeyError if it lacks a role.
    """
    if isinstance(figure, str):
        named = key.endswith(COLOURS) and figure.startswith(PREFIX)
        return roles[figure.removeprefix(PREFIX)] if named else figure
    if isinstance(figure, Mapping):
        return {name: resolve(value, roles, name) for name, value in figure.items()}
    if isinstance(figure, (list, tuple)):
        return [resolve(value, roles, key) for value in figure]
    return figure
