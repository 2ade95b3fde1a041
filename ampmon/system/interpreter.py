"""How ampmon starts Python: a module of its own, which finds the standard library before anything else.

`python -m` looks into the working directory first, and PYTHONPATH comes before the standard library. A file `queue.py`
of a project, or one that somebody planted in a shared directory, would run in place of Python's own.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


ROOT = os.path.abspath(os.sep)
"""A working directory that keeps no file system busy, and in which only an administrator puts files."""

_RUN = (
    "import runpy, sys; sys.path[:] = {path!r}; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def available() -> bool:
    """Whether the executable is Python: where that is embedded, it is the program around it, and would start again."""
    return bool(sys.executable) and Path(sys.executable).name.lower().startswith(("python", "pypy"))


def command(module: str, *arguments: str) -> list[str]:
    """The command that runs ``module``, of a package that is loaded here, as a program.

    It searches where this process does, so that it also finds packages in unusual places. ``-I`` ignores PYTHONPATH,
    the user's site and the working directory, on Python 3.10 too, which has no ``-P``.
    """
    run = _RUN.format(path=_search_path(module.partition(".")[0]))
    return [sys.executable, "-I", "-c", run, module, *arguments]


@contextmanager
def at_root() -> Iterator[str]:
    """Make `ROOT` the working directory for a moment, in which multiprocessing may spawn; gives the one before.

    A spawned child imports from its working directory first, and cannot be given a command of ours.
    """
    before = os.getcwd()
    os.chdir(ROOT)
    try:
        yield before
    finally:
        os.chdir(before)


def _search_path(package: str) -> list[str]:
    """The standard library, the folder of ``package``, installed packages, then the rest of this process's path."""
    library = Path(os.__file__).parent
    archive = library.parent / f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    first = [archive, library, library / "lib-dynload"]
    first.append(Path(str(sys.modules[package].__file__)).absolute().parents[1])
    installed = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    # A relative entry is wherever the process happens to be.
    rest = [place for place in map(str, sys.path) if os.path.isabs(place)]
    return list(dict.fromkeys([*map(str, first), *installed, *rest]))
