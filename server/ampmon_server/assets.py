"""Where the page's files are: beside this module in the wheel, two floors up in a checkout; Plotly's in its package."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path


_HERE = Path(__file__).parent


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


def plotly_version() -> str:
    """The version of the plotly package."""
    return version("plotly")
