"""An HTTP proxy that only tunnels, as many clusters have one. It leads each name to a port of this machine."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from certificates import secured


class ConnectProxy:
    """Tunnels each ``HOST:PORT`` in ``routes`` to a port of the loopback interface, and answers others with 403.

    ``requests`` holds method, target and Proxy-Authorization of each request. With the ``pair`` of a certificate and
    its key, connections to the proxy use TLS.
    """

    def __init__(self, routes: Mapping[str, int], pair: tuple[Path, Path] | None = None) -> None:
        self.requests: list[tuple[str, str, str | None]] = []
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_CONNECT(self) -> None:
                authorization = self.headers["Proxy-Authorization"]
                proxy.requests.append((self.command, self.path, authorization))
                if self.path not in routes:
                    self.send_error(403)
                    return
                with socket.create_connection(("127.0.0.1", routes[self.path])) as target:
                    self.send_response_only(200)
                    self.end_headers()
                    back = threading.Thread(target=_copy, args=(target, self.connection))
                    back.start()
                    _copy(self.connection, target)
                    back.join()

            do_GET = do_POST = do_CONNECT

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        if pair is not None:
            self._http.socket = secured(self._http.socket, pair)
        self.place = f"127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def __enter__(self) -> ConnectProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        socket.socket.shutdown(target, socket.SHUT_RDWR)
