"""Where the page's files are: in the package in the wheel, beside `server/` in a checkout; Plotly's in its package."""

from __future__ import annotations

import hashlib
from functools import cache, lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path


_PACKAGE = Path(__file__).parents[1]
PLOTLY_SHA256 = {"7.1.0": "3b6e15d45dbb7fca5bd2094291e961ddc5472cd887009e6009a56dab668d721f"}
"""Of the script in each version of the plotly package that was tested."""


class BadScript(Exception):
    """The Plotly script is missing or is not the one that was tested. The message says what to do."""


def web_directory() -> Path:
    """The directory that holds index.html."""
    packaged = _PACKAGE / "web"
    return packaged if packaged.is_dir() else _PACKAGE.parents[1] / "web"


def page_files(kind: str) -> dict[str, Path]:
    """The page's modules ("js") or style sheets ("css"), by name."""
    return {path.name: path for path in sorted((web_directory() / kind).glob(f"*.{kind}"))}


def page_version() -> str:
    """A hash of the page's modules and style sheets. They are read again only once one has changed."""
    files = [*page_files("css").values(), *page_files("js").values()]
    return _hash_of(tuple((path, path.stat().st_mtime_ns) for path in files))


@lru_cache(maxsize=1)
def _hash_of(files: tuple[tuple[Path, int], ...]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for path, _ in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def documentation_directory() -> Path:
    """The directory of the documentation site; empty or not there where nobody has built it."""
    packaged = _PACKAGE / "web" / "docs"
    return packaged if packaged.is_dir() else _PACKAGE.parents[1] / "build" / "docs"


def errors() -> Path:
    """The index of error messages."""
    packaged = _PACKAGE / "web" / "errors.md"
    return packaged if packaged.is_file() else _PACKAGE.parents[1] / "docs" / "errors.md"


def plotly_script() -> Path:
    """The script of the installed plotly package, which is not imported. Raises BadScript without it."""
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise BadScript("plotly is not installed: pip install 'ampmon[server]'")
    return Path(spec.origin).parent / "package_data" / "plotly.min.js"


@cache
def plotly() -> bytes:
    """That script, held to its hash when it is read; later changes of the file are not served. Raises BadScript."""
    script = plotly_script()
    installed, again = plotly_version(), "pip install --force-reinstall --no-deps"
    try:
        content = script.read_bytes()
    except OSError as error:
        raise BadScript(
            f"cannot read {script} ({error.strerror}): {again} plotly=={installed}"
        ) from None
    found = hashlib.sha256(content).hexdigest()
    if found != PLOTLY_SHA256.get(installed, found):
        raise BadScript(f"{script} is not that of plotly {installed}: {again} plotly=={installed}")
    return content


def check_plotly() -> str | None:
    """What is to be said of a version whose script nobody has held to a hash. Raises BadScript."""
    plotly()
    if plotly_version() in PLOTLY_SHA256:
        return None
    return f"plotly {plotly_version()} is newer than what was tested: its script is served as it is"


def plotly_version() -> str:
    """The version of the plotly package."""
    return version("plotly")
