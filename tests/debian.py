"""Installs what tests need of Debian's packages, where that is possible. Knows nothing of ampmon."""

from __future__ import annotations

import os
import shutil
import subprocess


def install(package: str) -> None:
    """Does nothing elsewhere, or where we are not root, and does not fail: what is missing then shows in the search."""
    if not shutil.which("apt-get") or os.geteuid() != 0:
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-qq", "--no-install-recommends", package],
    ):
        subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False, stdout=2)
