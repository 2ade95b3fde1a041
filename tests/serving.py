"""Runs the real `ampmon serve` for a test, in its own process and data directory."""

from __future__ import annotations

import atexit
import json
import os
import pty
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import urllib3

import warm
from scripts import Script
from waiting import DEADLINE_S, wait_for


CLOSE = {"Connection": "close"}
"""Closes each connection: the server could close a kept one, or its worker die, just as it is used again."""


_reserved: list[socket.socket] = []


def free_port() -> int:
    """A port of the loopback interface that the kernel gives to no other process before this one ends.

    A socket without a listener stays bound to it: only a server that names the port and sets SO_REUSEADDR may listen.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    _reserved.append(holder)
    return int(holder.getsockname()[1])


@atexit.register
def _release() -> None:
    for holder in _reserved:
        holder.close()


class Terminal:
    """A terminal without a user. Text written to ``path`` is shown."""

    def __init__(self) -> None:
        self._screen, self._line = pty.openpty()
        self.path = Path(os.ttyname(self._line))
        self._shown = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._screen)
        os.close(self._line)

    @property
    def shown(self) -> str:
        """Everything written to it so far."""
        while select.select([self._screen], [], [], 0)[0]:
            self._shown += os.read(self._screen, 65536)
        return self._shown.decode(errors="replace")


class Reachable:
    """A server by its address. Requests carry the token in ``token_file``, and use TLS with the authority ``ca``."""

    def __init__(self, url: str, token_file: Path, ca: Path | None = None) -> None:
        self.url = url
        self.token_file = token_file
        self._http = urllib3.PoolManager(
            retries=False, timeout=DEADLINE_S, ca_certs=str(ca) if ca else None
        )

    @property
    def token(self) -> str:
        return self.token_file.read_text().strip()

    def request(self, method: str, path: str, **arguments: Any) -> urllib3.BaseHTTPResponse:
        """Send a request with the token. ``path`` begins with a slash."""
        headers = {"Authorization": f"Bearer {self.token}", **CLOSE}
        headers |= arguments.pop("headers", {})
        return self._http.request(method, self.url + path, headers=headers, **arguments)

    def get(self, path: str) -> Any:
        """The JSON at ``path`` under /api/v1. Raises AssertionError with the answer for any status but 200."""
        answer = self.request("GET", f"/api/v1{path}")
        assert answer.status == 200, f"{path}: {answer.status} {answer.data[:2000]!r}"
        return json.loads(answer.data)

    def login_link(self) -> str:
        """Create a one-time sign-in link."""
        answer = self.request("POST", "/api/v1/login-links")
        assert answer.status in {200, 201}, answer.data
        return str(json.loads(answer.data)["url"])


class Server(Reachable):
    """An `ampmon serve` on a data directory, which can be started, killed and restarted on the same port.

    ``python`` is the interpreter with ampmon; the tests' own is forked from a warm process. ``options`` are further
    arguments. Output goes to ``log``. Requests carry the directory's token, or that of ``token_file``. With ``ca``, the
    issuer of the server's certificate, requests use TLS. With ``terminal``, the server's output is that terminal.
    ``before`` and ``preload`` are those of `warm.start`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        python: Path = Path(sys.executable),
        options: Sequence[str] = (),
        token_file: Path | None = None,
        ca: Path | None = None,
        terminal: Terminal | None = None,
        before: str = "",
        preload: str = "",
    ) -> None:
        self.directory = directory
        self.options = [*options, *(["--token-file", str(token_file)] if token_file else [])]
        self.python = python
        self.port = port or free_port()
        url = f"{'https' if ca else 'http'}://127.0.0.1:{self.port}"
        super().__init__(url, token_file or directory / "token", ca)
        self.terminal = terminal
        self.before = before
        self.preload = preload
        self.log = terminal.path if terminal else directory / "serve.log"
        self.process: Script | subprocess.Popen[bytes] | None = None

    def start(self, environment: Mapping[str, str] = os.environ) -> None:
        """Start the server and wait until it answers. Raises RuntimeError with its output if it ends instead."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if self._is_ours and "--database-url" not in self.options:
            # Imported late: it loads the store, which few tests of the client need.
            from databases import provide

            provide(self.directory)
        command = ["serve", "--port", str(self.port), "--data-dir", str(self.directory)]
        self.process = self._begin([*command, *self.options], environment)
        wait_for(self._is_up, self.url)

    def _is_up(self) -> bool:
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError(f"ampmon serve did not start; it printed:\n{self.printed}")
        return self.answers()

    @property
    def _is_ours(self) -> bool:
        return self.python == Path(sys.executable)

    def _begin(
        self, command: Sequence[str], environment: Mapping[str, str]
    ) -> Script | subprocess.Popen[bytes]:
        if self._is_ours:
            return warm.start(
                command, self.log, environment, before=self.before, preload=self.preload
            )
        with self.log.open("ab") as output:
            return subprocess.Popen(
                [str(self.python.with_name("ampmon")), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**environment, "PYTHONUNBUFFERED": "1"},
            )

    def answers(self) -> bool:
        try:
            return self._http.request("GET", f"{self.url}/healthz", headers=CLOSE).status < 500
        except urllib3.exceptions.HTTPError:
            return False

    @property
    def printed(self) -> str:
        return self.terminal.shown if self.terminal else self.log.read_text(errors="replace")

    @property
    def announced(self) -> str:
        """The only printed line that announces the address. The log has the requests of `answers` as well."""
        (line,) = [each for each in self.printed.splitlines() if each.startswith("ampmon is at ")]
        return line

    @property
    def address(self) -> str:
        """The address in the announced line."""
        return self.announced.split()[3]

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the server as Ctrl-C does, and wait."""
        self._end("terminate")

    def kill(self) -> None:
        """Kill the server, and wait."""
        self._end("kill")

    def _end(self, how: str) -> None:
        if self.process is None:
            return
        if self.process.poll() is None:
            getattr(self.process, how)()
        try:
            self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None
