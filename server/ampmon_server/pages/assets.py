"""Finds the page's files: in the package in a wheel, beside `server/` in a checkout; Plotly's are in its package.

Also returns the page's styles for files that load nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import cache, lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ampmon.errors import ConfigurationError
from ampmon.system.installing import install


_PACKAGE = Path(__file__).parents[1]
_CHECKOUT = _PACKAGE.parents[1]
PLOTLY_SHA256 = {"7.1.0": "3b6e15d45dbb7fca5bd2094291e961ddc5472cd887009e6009a56dab668d721f"}
"""The hash of the script in each tested version of the plotly package."""


def web_directory() -> Path:
    """Return the directory that holds index.html."""
    return _first(_PACKAGE / "web", _CHECKOUT / "web")


def page_files(kind: str) -> dict[str, Path]:
    """Return the page's modules ("js") or style sheets ("css"), by file name."""
    return {path.name: path for path in sorted((web_directory() / kind).glob(f"*.{kind}"))}


def page_version() -> str:
    """Return a hash of the page's modules and style sheets. They are read again only after one has changed."""
    files = [*page_files("css").values(), *page_files("js").values()]
    return _hash_of(tuple((path, path.stat().st_mtime_ns) for path in files))


@lru_cache(maxsize=1)
def _hash_of(files: tuple[tuple[Path, int], ...]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for path, _ in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def documentation_directory() -> Path:
    """Return the directory of the documentation site. It is empty or missing if nobody has built the site."""
    return _first(_PACKAGE / "web" / "docs", _CHECKOUT / "build" / "docs")


def errors() -> Path:
    """Return the path of the index of error messages."""
    return _first(_PACKAGE / "web" / "errors.md", _CHECKOUT / "docs" / "errors.md")


def _first(packaged: Path, beside: Path) -> Path:
    return packaged if packaged.exists() else beside


def plotly_script() -> Path:
    """Return the script of the installed plotly package, without importing it. Raises ConfigurationError."""
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise ConfigurationError(f"plotly is not installed: {install('server')}")
    return Path(spec.origin).parent / "package_data" / "plotly.min.js"


@cache
def plotly() -> bytes:
    """Return Plotly's script, checked against its hash when it is read. Later changes of the file are not served.

    Raises ConfigurationError.
    """
    script = plotly_script()
    installed, again = plotly_version(), "pip install --force-reinstall --no-deps"
    try:
        content = script.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"cannot read {script} ({error.strerror}): {again} plotly=={installed}"
        ) from None
    found = hashlib.sha256(content).hexdigest()
    if found != PLOTLY_SHA256.get(installed, found):
        raise ConfigurationError(
            f"{script} is not that of plotly {installed}: {again} plotly=={installed}"
        )
    return content


def check_plotly() -> str | None:
    """Return a warning if the hash of this plotly version is unknown. Raises ConfigurationError."""
    plotly()
    if plotly_version() in PLOTLY_SHA256:
        return None
    return f"plotly {plotly_version()} is newer than what was tested: its script is served as it is"


def plotly_version() -> str:
    return version("plotly")


def themes() -> dict[str, dict[str, Any]]:
    """Return the colours of each role, by theme."""
    roles: dict[str, dict[str, Any]] = json.loads(
        (web_directory() / "roles.json").read_text("utf-8")
    )
    return roles


def embedded(sheets: Iterable[str]) -> str:
    """Return the text of these sheets of web/css. The reader's system chooses the theme."""
    texts = [(web_directory() / "css" / f"{name}.css").read_text("utf-8") for name in sheets]
    roles = themes()
    light, dark = (_properties(roles[theme]) for theme in ("light", "dark"))
    night = f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"
    return "\n".join([*texts, f":root {{ {light} }}", night])


def _properties(roles: dict[str, Any]) -> str:
    return " ".join(
        f"--{name}: {colour};" for name, colour in roles.items() if isinstance(colour, str)
    )
