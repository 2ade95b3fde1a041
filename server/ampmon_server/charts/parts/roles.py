"""Puts a theme's colours in the place of the roles that figures name, as the page does in the browser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


PREFIX = "role:"
COLOURS = ("color", "colorscale")
"""A role stands only under a key that ends so: elsewhere in a figure stand names, which may begin like one."""


def resolve(figure: Any, roles: Mapping[str, Any], key: str = "") -> Any:
    """A copy of ``figure``, or of the part that stands under ``key``, with colours for every "role:name".

    ``roles`` are one theme of web/roles.json. Raises KeyError for a role that it lacks.
    """
    if isinstance(figure, str):
        named = key.endswith(COLOURS) and figure.startswith(PREFIX)
        return roles[figure.removeprefix(PREFIX)] if named else figure
    if isinstance(figure, Mapping):
        return {name: resolve(value, roles, name) for name, value in figure.items()}
    if isinstance(figure, (list, tuple)):
        return [resolve(value, roles, key) for value in figure]
    return figure
