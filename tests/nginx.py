"""nginx in front of a real server, configured by the blocks in the documentation."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from serving import Server, free_port
from tools import NGINX
from waiting import wait_for


DOCS = Path(__file__).parents[1] / "docs"
_AROUND = """
{user}
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log {folder}/errors;
events {{}}
http {{
    access_log off;
    log_format path $request_uri;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {server}
}}
"""
_AT_A_PATH = """
server {{
    listen 127.0.0.1:{port};
    {location}
    location / {{ access_log {folder}/strays path; return 502; }}
}}
"""


class Nginx:
    """An nginx on a free port, running inside a `with` block. ``url`` leads through it."""

    def __init__(
        self, server: Server, folder: Path, port: int, server_block: str, url: str
    ) -> None:
        self.server, self.url = server, url
        self._folder, self._port = folder, port
        self._configuration = folder / "nginx.conf"
        block = server_block.replace("127.0.0.1:8267", f"127.0.0.1:{server.port}")
        # Its workers write to the folder, which only this user owns.
        user = "user root;" if os.geteuid() == 0 else ""
        self._configuration.write_text(_AROUND.format(user=user, folder=folder, server=block))

    @classmethod
    def under_a_path(cls, server: Server, folder: Path) -> Nginx:
        """The proxy of docs/embedding.md, under a path. Requests outside that path are kept in `strays`."""
        port, location = free_port(), _block("embedding.md")
        prefix = location.split()[1].rstrip("/")
        block = _AT_A_PATH.format(port=port, location=location, folder=folder)
        return cls(server, folder, port, block, f"http://127.0.0.1:{port}{prefix}")

    @classmethod
    def for_a_team(cls, server: Server, folder: Path, certificate: Path, key: Path) -> Nginx:
        """The proxy of docs/scaling.md with TLS, for a certificate of this machine's name."""
        port, block = free_port(), _block("scaling.md")
        for documented, here in (
            ("listen 443", f"listen 127.0.0.1:{port}"),
            ("/etc/ssl/ampmon.example.pem", str(certificate)),
            ("/etc/ssl/ampmon.example.key", str(key)),
        ):
            assert documented in block
            block = block.replace(documented, here)
        return cls(server, folder, port, block, f"https://localhost:{port}")

    def __enter__(self) -> Nginx:
        program = NGINX.path()
        command = [program, "-c", str(self._configuration), "-e", str(self._folder / "errors")]
        self._process = subprocess.Popen(command, cwd=self._folder)
        pid = self._folder / "pid"
        try:
            wait_for(lambda: pid.exists() or self._process.poll() is not None, "for nginx")
        except BaseException:
            self.__exit__()
            raise
        assert self._process.poll() is None, (self._folder / "errors").read_text()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    @property
    def strays(self) -> list[str]:
        """The paths requested outside the prefix."""
        file = self._folder / "strays"
        return file.read_text().splitlines() if file.exists() else []

    def login_link(self) -> str:
        return f"{self.url}/login?{self.server.login_link().partition('?')[2]}"


def _block(page: str) -> str:
    (block,) = re.findall(r"```nginx\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    return str(block)
