"""Puts a theme's colours in the place of the roles that figures name, as the page does in the browser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


PREFIX = "role:"


def resolve(figure: Any, roles: Mapping[str, Any]) -> Any:
    """A copy of ``figure`` with ``roles`` (one theme of web/roles.json) for every "role:name".

    Raises KeyError for a role that the theme lacks.
    """
    if isinstance(figure, str):
        return roles[figure.removeprefix(PREFIX)] if figure.startswith(PREFIX) else figure
    if isinstance(figure, Mapping):
        return {key: resolve(value, roles) for key, value in figure.items()}
    if isinstance(figure, (list, tuple)):
        return [resolve(value, roles) for value in figure]
    return figure
