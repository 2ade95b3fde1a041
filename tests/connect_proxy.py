"""An HTTP proxy that only tunnels, as many clusters have one. It leads each name to a port of this machine."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Mapping
from pathlib import Path

from http_server import HttpServer, QuietHandler


class ConnectProxy(HttpServer):
    """Tunnels each ``HOST:PORT`` in ``routes`` to a port of the loopback interface, and answers others with 403.

    ``requests`` holds method, target and Proxy-Authorization of each request. With the ``pair`` of a certificate and
    its key, connections to the proxy use TLS.
    """

    def __init__(self, routes: Mapping[str, int], pair: tuple[Path, Path] | None = None) -> None:
        self.requests: list[tuple[str, str, str | None]] = []
        proxy = self

        class Handler(QuietHandler):
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

        super().__init__(Handler, pair=pair)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        socket.socket.shutdown(target, socket.SHUT_RDWR)
