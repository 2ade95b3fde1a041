"""`ampmon.show`: shows a run in a notebook cell. The server's code draws it, and is imported only by this call."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from ampmon.client import current_run
from ampmon.system.installing import install


WAIT_S = 10.0
"""How long to wait for the run of this process, whose first records may still be on their way."""


class Missing:
    """What a cell shows if the server's code is not installed."""

    def __init__(self, words: str) -> None:
        self._words = words

    def __repr__(self) -> str:
        return self._words


def show(
    run: str | None = None,
    *,
    height: int = 800,
    theme: str = "light",
    url: str | None = None,
    browser_url: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
) -> Any:
    """Show a run in a notebook cell: its live page, or its findings and charts if no server can show it there.

    - ``run``: an id, the beginning of one, or a name. Default: the run of this process, else the newest one.
    - ``height`` in pixels, ``theme`` light or dark.
    - ``browser_url``: the server's address for the browser, if it differs from ``url``.

    Needs the extra ``server``. Does not sync. Blocks until the server answers, up to 10 s for a run that has just
    begun. Without an answer, the cell says why.
    """
    own, wait_s = current_run.current() if run is None else None, 0.0
    if own is not None and own.run_id is not None:
        run, wait_s = str(own.run_id), WAIT_S
        url = url or (own.options.url if own.options.named else None)
        data_dir = data_dir or own.options.dir
    try:
        notebook = import_module("ampmon_server.notebook")
    except ModuleNotFoundError as error:
        where = f" The page: {own.options.url}/#/runs/{run}" if wait_s and own is not None else ""
        needed = f"ampmon.show needs {error.name}: {install('server')}"
        return Missing(f"{needed}.{where}")
    return notebook.show(
        run or notebook.LATEST,
        height=height,
        theme=theme,
        url=url,
        browser_url=browser_url,
        data_dir=data_dir,
        wait_s=wait_s,
    )
