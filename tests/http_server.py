"""An HTTP server in a thread of the test, for doubles of other programs."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseRequestHandler
from typing import Any, TypeVar

from certificates import secured


S = TypeVar("S", bound="HttpServer")


class QuietHandler(BaseHTTPRequestHandler):
    """Prints no line for each request."""

    disable_nagle_algorithm = True  # it delays each answer by 40 ms

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class HttpServer(ThreadingHTTPServer):
    """Serves within a `with` block, on a free ``port`` of the loopback interface unless one is given.

    With the ``pair`` of a certificate and its key, connections use TLS.
    """

    daemon_threads = True

    def __init__(
        self,
        handler: type[BaseRequestHandler],
        port: int = 0,
        pair: tuple[Path, Path] | None = None,
    ) -> None:
        super().__init__(("127.0.0.1", port), handler)
        if pair is not None:
            self.socket: Any = secured(self.socket, pair)
        self.netloc = f"127.0.0.1:{self.server_port}"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self: S) -> S:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()
