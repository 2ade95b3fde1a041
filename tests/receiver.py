"""A local receiver of alerts that keeps what it gets and answers as configured."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ampmon_server.alerting.targets import Alerts, Target
from http_server import HttpServer, QuietHandler


class Receiver(HttpServer):
    """``answer`` is a status, or a function called before a 200 answer. ``location`` is a redirect's target."""

    def __init__(self, pair: tuple[Path, Path] | None = None) -> None:
        super().__init__(_Handler, pair=pair)
        self.got: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.answer: int | Callable[[], object] = 200
        self.location = ""

    @property
    def titles(self) -> list[str]:
        return [each["title"] for each in self.got]

    def target(self, **more: Any) -> Target:
        return Target(name="own", url=f"json://{self.netloc}/own", **more)


class _Handler(QuietHandler):
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


def receiving(pair: tuple[Path, Path] | None = None) -> AbstractContextManager[Receiver]:
    """A running receiver, which uses TLS with the ``pair`` of a certificate and its key."""
    return Receiver(pair)


def alerts_to(*targets: Target, **more: Any) -> Alerts:
    """Settings that send alerts to these targets, with private addresses allowed."""
    return Alerts(targets=targets, allow_private=True, **more)


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    """Write an alerts file with this mode."""
    path.write_text(text)
    path.chmod(mode)
    return path
