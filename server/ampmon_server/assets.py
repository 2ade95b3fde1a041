"""Where the page's files are: beside this module in the wheel, two floors up in a checkout; Plotly's in its package."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path


_HERE = Path(__file__).parent
PLOTLY_SHA256 = {"7.1.0": "3b6e15d45dbb7fca5bd2094291e961ddc5472cd887009e6009a56dab668d721f"}
"""Of the script in each version of the plotly package that was tested."""


class Tampered(Exception):
    """A file is not what it is said to be; the message says what to do."""


def web_directory() -> Path:
    """The directory that holds index.html."""
    packaged = _HERE / "web"
    return packaged if packaged.is_dir() else _HERE.parents[1] / "web"


def findings_directory() -> Path:
    """The directory of the pages that explain findings, and of their pictures in `img`."""
    packaged = _HERE / "web" / "manual" / "findings"
    return packaged if packaged.is_dir() else _HERE.parents[1] / "docs" / "findings"


def measures() -> Path:
    """The page that defines what is measured."""
    packaged = _HERE / "web" / "manual" / "measures.md"
    return packaged if packaged.is_file() else _HERE.parents[1] / "docs" / "measures.md"


def plotly_script() -> Path:
    """The script of the installed plotly package, which is not imported. Raises FileNotFoundError without it."""
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("plotly is not installed: pip install 'ampmon[server]'")
    return Path(spec.origin).parent / "package_data" / "plotly.min.js"


def check_plotly() -> str | None:
    """What is to be said of a version whose script nobody has held to a hash. Raises Tampered, FileNotFoundError."""
    installed, expected = plotly_version(), PLOTLY_SHA256.get(plotly_version())
    if expected is None:
        return f"plotly {installed} is newer than what was tested: its script is served as it is"
    script = plotly_script()
    if hashlib.sha256(script.read_bytes()).hexdigest() != expected:
        raise Tampered(
            f"{script} is not that of plotly {installed}: pip install --force-reinstall --no-deps plotly=={installed}"
        )
    return None


def plotly_version() -> str:
    """The version of the plotly package."""
    return version("plotly")
