"""Starts Python on a module of ampmon's, with the standard library first on its path.

`python -m` searches the working directory first, and PYTHONPATH before the standard library. A project's `queue.py`, or
one that somebody planted in a shared directory, would run in place of Python's own.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


ROOT = os.path.abspath(os.sep)
"""A working directory that keeps no file system busy, and where only an administrator can put files."""

_RUN = (
    "import runpy, sys; sys.path[:] = {path!r}; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def available() -> bool:
    """Whether sys.executable is Python. If Python is embedded, it is the host program, which would start again."""
    return bool(sys.executable) and Path(sys.executable).name.lower().startswith(("python", "pypy"))


def command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs ``module``, of a package that is loaded here, as a program.

    It searches this process's path, so it also finds packages in unusual places. ``-I`` ignores PYTHONPATH, the user's
    site and the working directory, on Python 3.10 too, which has no ``-P``.
    """
    run = _RUN.format(path=_search_path(module.partition(".")[0]))
    return [sys.executable, "-I", "-c", run, module, *arguments]


@contextmanager
def at_root() -> Iterator[str]:
    """Make `ROOT` the working directory while multiprocessing spawns a process. Yield the previous one.

    A spawned child imports from its working directory first, and we cannot choose its command.
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
    # Relative entries depend on the working directory.
    rest = [place for place in map(str, sys.path) if os.path.isabs(place)]
    return list(dict.fromkeys([*map(str, first), *installed, *rest]))
