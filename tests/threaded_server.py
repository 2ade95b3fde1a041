"""The real server in a thread of the test, on an SQLite file. It restarts faster than a process."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import uvicorn

from ampmon_server.http.address import listen
from ampmon_server.http.app import create_app
from ampmon_server.http.service import Service
from ampmon_server.settings import Settings
from ampmon_server.store.pages.pages import PagedSeries, Rows, unpack
from databases import provide
from serving import Reachable


class ThreadedServer(Reachable):
    """Serves a data directory from construction on. It can be stopped and restarted on its port, and keeps a database.

    ``settings`` are further server settings. `start` replaces those it is given.
    """

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self._settings = settings
        self._listener = listen(Settings(data_directory=directory, port=0))
        self.port: int = self._listener.getsockname()[1]
        super().__init__(f"http://127.0.0.1:{self.port}", directory / "token")
        provide(directory)
        self.start()

    @property
    def settings(self) -> Settings:
        return Settings(data_directory=self.directory, **self._settings)

    def start(self, **settings: Any) -> None:
        self._settings |= settings
        self._service = Service(self.settings)
        app = create_app(self.settings, self._service)
        self._uvicorn = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none"))
        # uvicorn closes the socket that it is given; until the next start, connections queue on this one.
        own = self._listener.dup()
        self._thread = threading.Thread(target=self._uvicorn.run, args=([own],), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Finish the requests in progress and close the database."""
        self._uvicorn.should_exit = True
        self._thread.join()
        self._service.close()

    def empty(self) -> None:
        """Replace the database with an empty one. The server must be stopped."""
        for left in self.settings.server_directory.glob("ampmon.db*"):
            left.unlink()
        provide(self.directory)

    def close(self) -> None:
        self.stop()
        self._listener.close()

    def rows(self, query: str) -> Sequence[tuple[Any, ...]]:
        """The result of a query, read directly from the database file."""
        path = self.settings.server_directory / "ampmon.db"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return connection.execute(query).fetchall()

    def pages(self, paged: PagedSeries) -> Iterator[tuple[bytes, int, str, Rows]]:
        """Yield (run, stream, name, rows) of each page, for all attempts in order."""
        name = "name" if "name" in paged.table.c else "''"
        for run_id, stream, called, data in self.rows(
            f"SELECT run_id, stream, {name}, data FROM {paged.table} ORDER BY 1, 2, 3, bucket"
        ):
            yield run_id, stream, called, unpack(data, paged.dtype)
