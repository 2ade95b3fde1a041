"""`ampmon serve`, as the command line runs it, in a process of a nursery."""

from __future__ import annotations

import importlib

from ampmon_server.cli import main


def warm() -> None:
    """Load what a server loads."""
    for name in (
        "ampmon_server.cli.serve",
        "ampmon_server.http.app",
        "uvicorn.protocols.http.auto",
    ):
        importlib.import_module(name)


def serve(arguments: list[str]) -> int:
    """Serve until killed or told to stop."""
    return main(["serve", *arguments])
