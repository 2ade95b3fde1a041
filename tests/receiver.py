"""A local receiver of alerts that keeps what it gets and answers as told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ampmon_server.alerting.targets import Alerts, Target


class Receiver(ThreadingHTTPServer):
    """``answer`` is a status, or a function called before a 200 answer. ``location`` is a redirect's target."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.got: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.answer: int | Callable[[], object] = 200
        self.location = ""

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    @property
    def titles(self) -> list[str]:
        return [each["title"] for each in self.got]

    def target(self, name: str = "own", **more: Any) -> Target:
        return Target(name=name, url=f"json://{self.place}/{name}", **more)


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.paths.append(self.path)
        answer = self.server.answer
        if callable(answer):
            answer()
            answer = 200
        if answer == 200:
            self.server.got.append(json.loads(body))
        self.send_response(answer)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A running receiver."""
    with Receiver() as receiver:
        thread = threading.Thread(target=receiver.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield receiver
        finally:
            receiver.shutdown()
            thread.join()


def alerts_to(*targets: Target, **more: Any) -> Alerts:
    """Settings that send alerts to these targets, with private addresses allowed."""
    return Alerts(targets=targets, allow_private=True, **more)


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    """Write an alerts file with this mode."""
    path.write_text(text)
    path.chmod(mode)
    return path
