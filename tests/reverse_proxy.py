"""An HTTP proxy that shows a real server under a path, as Jupyter or nginx does, and counts requests.

with ReverseProxy(server, "/user/me/ampmon") as proxy:
    reader = new_reader(proxy)                        # it has a url and login links like a server
    ...
    assert proxy.asked("/api/v1/live") == 1
    assert proxy.streams == 1                         # open now
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator

from http_server import HttpServer, QuietHandler
from serving import Server
from waiting import DEADLINE_S


_LIVE = "/api/v1/live"
_CHUNK = 2**16
_CACHED = (".js", ".css")
_OWN = {"connection", "keep-alive", "transfer-encoding"}


class ReverseProxy(HttpServer):
    """Listens on a free port and forwards paths that begin with ``prefix``, without the prefix.

    The Host header is forwarded unchanged. Other paths are answered with 502 and kept in ``strays``.
    With ``cache`` the browser may cache scripts and styles, so that more tabs cost little.
    """

    def __init__(self, server: Server, prefix: str = "", *, cache: bool = False) -> None:
        self.server = server
        self.prefix = prefix
        self.cache = cache
        self.requests: list[tuple[str, str, int]] = []
        """(method, path, status) of each request, in the order of the answers."""
        self.strays: list[str] = []
        self.streams = 0
        self.streams_max = 0
        self.lock = threading.Lock()
        super().__init__(_Handler)
        self.url = f"http://{self.netloc}{prefix}"

    def handle_error(self, *_: object) -> None:
        """Ignore errors, such as a browser that closes the connection."""

    def login_link(self) -> str:
        return f"{self.url}/login?{self.server.login_link().partition('?')[2]}"

    def asked(self, part: str) -> int:
        """The number of requests with ``part`` in their path."""
        with self.lock:
            return sum(part in path for _, path, _ in self.requests)

    def count_stream(self, by: int) -> None:
        with self.lock:
            self.streams += by
            self.streams_max = max(self.streams, self.streams_max)


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"
    server: ReverseProxy

    def _pass(self) -> None:
        proxy = self.server
        if not self.path.startswith(proxy.prefix + "/"):
            proxy.strays.append(self.path)
            self.send_error(502)
            return
        path = self.path[len(proxy.prefix) :]
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        upstream = http.client.HTTPConnection("127.0.0.1", proxy.server.port, timeout=DEADLINE_S)
        try:
            upstream.request(self.command, path, body or None, dict(self.headers.items()))
            answer = upstream.getresponse()
            with proxy.lock:
                proxy.requests.append((self.command, self.path, answer.status))
            if _LIVE in path and answer.status == 200:
                with self._counted(answer):
                    self._answer(answer)
            else:
                self._answer(answer)
        except (OSError, http.client.HTTPException):  # the server or the browser is gone
            self.close_connection = True
        finally:
            upstream.close()

    def _answer(self, answer: http.client.HTTPResponse) -> None:
        self.send_response_only(answer.status)
        kept = self.server.cache and self.path.endswith(_CACHED)
        for name, value in answer.getheaders():
            if name.lower() not in _OWN:
                fresh = kept and name.lower() == "cache-control"
                self.send_header(name, "max-age=3600" if fresh else value)
        chunked = answer.getheader("Content-Length") is None and answer.status not in {204, 304}
        if chunked:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while part := answer.read1(_CHUNK):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
            self.wfile.flush()
        if chunked:
            self.wfile.write(b"0\r\n\r\n")

    @contextlib.contextmanager
    def _counted(self, answer: http.client.HTTPResponse) -> Iterator[None]:
        """Count this as an open stream for the block, which also ends when the browser closes the connection."""
        self.server.count_stream(1)
        watcher = threading.Thread(
            target=self._hang_up_with_the_browser, args=(answer,), daemon=True
        )
        watcher.start()
        try:
            yield
        finally:
            self.server.count_stream(-1)

    def _hang_up_with_the_browser(self, answer: http.client.HTTPResponse) -> None:
        with contextlib.suppress(OSError):
            if self.connection.recv(1, socket.MSG_PEEK) == b"" and answer.fp is not None:
                answer.fp.raw._sock.shutdown(socket.SHUT_RDWR)

    do_GET = do_HEAD = do_POST = do_PATCH = do_DELETE = _pass
