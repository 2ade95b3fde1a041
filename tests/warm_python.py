"""A `python` for launchers such as torchrun, which forks scripts from a process that has imported torch."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from pathlib import Path

from scripts import Script
from waiting import DEADLINE_S


_PROGRAM = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [b"."], [0, 1, 2])
    server.sendall(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode())
    server.shutdown(socket.SHUT_WR)
    sys.exit(int(server.recv(9) or 1))
"""


class WarmPython:
    """``program`` in ``folder`` takes the arguments of `Script`, with an optional -u, and exits like the script."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "python"
        address = str(folder / "socket")
        self.program.write_text(_PROGRAM.format(python=sys.executable, address=address))
        self.program.chmod(0o700)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.settimeout(DEADLINE_S)
        self._listener.bind(address)
        self._listener.listen()

    def serve(self, count: int) -> None:
        """Run the next ``count`` scripts that ``program`` is called for, in parallel, to their ends."""
        with self._listener, contextlib.ExitStack() as stack:
            clients = [stack.enter_context(self._listener.accept()[0]) for _ in range(count)]
            running = [stack.enter_context(_started(client)) for client in clients]
            for client, script in zip(clients, running, strict=True):
                client.sendall(str(script.wait()).encode())


def _started(client: socket.socket) -> Script:
    _, (stdin, stdout, stderr), _, _ = socket.recv_fds(client, 1, 3)
    with client.makefile() as order:
        arguments, environment, cwd = json.load(order)
    given = [each for each in arguments if each != "-u"]
    script = Script(
        *given, stdin=stdin, stdout=stdout, stderr=stderr, env=environment, cwd=Path(cwd)
    )
    for file in (stdin, stdout, stderr):
        os.close(file)
    return script
