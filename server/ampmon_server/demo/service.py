"""The server that the demo reports to: one that already serves its data directory, or one that it starts."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ampmon.errors import ConfigurationError
from ampmon.system import interpreter, private
from ampmon_server.client import ApiClient, ClientError
from ampmon_server.client.answering import running
from ampmon_server.http.address import is_free
from ampmon_server.settings import DEFAULT_PORT, Settings


START_S = 30.0
STOP_S = 10.0


class DemoServer:
    """A server, queried with the token of its data directory. ``own`` if the demo started it; then `stop` ends it."""

    def __init__(self, directory: Path, url: str) -> None:
        self.url = url
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def own(self) -> bool:
        return self._process is not None

    def ask(self, path: str, method: str = "GET") -> Any:
        """Return the JSON answer of a path under /api/v1, or None if the server fails or rejects the token."""
        try:
            token = private.read(self._directory / "token").decode().strip()
            with ApiClient(self.url, token, timeout_s=2.0) as server:
                return json.loads(server.get(path) if method == "GET" else server.post(path))
        except (OSError, ValueError, ClientError):
            return None

    def login_link(self) -> str:
        """A one-time sign-in link, or the plain address if the server makes none."""
        made = self.ask("/login-links", "POST")
        return str(made["url"]) if made else self.url

    def start(self, port: int, stopping: Callable[[], bool]) -> None:
        """Start `ampmon serve` and wait until it answers. Raises ConfigurationError with its output if it does not."""
        options = ("--port", str(port), "--data-dir", str(self._directory))
        with tempfile.TemporaryFile() as printed:
            # A session of its own: Ctrl-C in the terminal reaches only the demo, which stops the server last.
            self._process = subprocess.Popen(
                interpreter.command("ampmon_server.cli", "serve", *options),
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            deadline = time.monotonic() + START_S
            while time.monotonic() < deadline and not stopping() and self.running():
                url = running(Settings(data_directory=self._directory), None)
                if url is not None and port in (0, urlsplit(url).port):
                    self.url = url
                    return
                time.sleep(0.05)
            self.stop()
            printed.seek(0)
            said = printed.read().decode(errors="replace").strip().removeprefix("ampmon serve: ")
        if not stopping():
            raise ConfigurationError(said or "ampmon serve did not start and printed nothing")

    def running(self) -> bool:
        """Whether the process that the demo started is alive."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Stop the server if the demo started it, and wait for it to end."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


def find_or_start(directory: Path, port: int | None, stopping: Callable[[], bool]) -> DemoServer:
    """Return the server of ``directory`` at ``port``, or start one. Raises ConfigurationError.

    Without a port, return the server at any port, or start one at the default port, or at a free one if another program
    uses that.
    """
    url = running(Settings(data_directory=directory), None)
    service = DemoServer(directory, url or "")
    if url is None or port not in (None, urlsplit(url).port):
        service.start(port or (DEFAULT_PORT if is_free(DEFAULT_PORT) else 0), stopping)
    return service
