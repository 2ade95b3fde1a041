"""The page's styles for files that load nothing: style sheets by name, and the colours of both themes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ampmon_server.pages import assets


def themes() -> dict[str, dict[str, Any]]:
    """Return the colours of each role, by theme."""
    roles: dict[str, dict[str, Any]] = json.loads(
        (assets.web_directory() / "roles.json").read_text("utf-8")
    )
    return roles


def embedded(sheets: Iterable[str]) -> str:
    """Return the text of these sheets of web/css. The reader's system chooses the theme."""
    texts = [(assets.web_directory() / "css" / f"{name}.css").read_text("utf-8") for name in sheets]
    roles = themes()
    light, dark = (_properties(roles[theme]) for theme in ("light", "dark"))
    night = f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"
    return "\n".join([*texts, f":root {{ {light} }}", night])


def _properties(roles: dict[str, Any]) -> str:
    return " ".join(
        f"--{name}: {colour};" for name, colour in roles.items() if isinstance(colour, str)
    )
