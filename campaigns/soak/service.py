"""Runs `ampmon serve` as the command line does, in a nursery's process."""

from __future__ import annotations

import importlib

from ampmon_server.cli import main


def warm() -> None:
    """Load the modules that a server needs."""
    for name in (
        "ampmon_server.cli.serve",
        "ampmon_server.http.app",
        "uvicorn.protocols.http.auto",
    ):
        importlib.import_module(name)


def serve(arguments: list[str]) -> int:
    """Serve until killed or stopped."""
    return main(["serve", *arguments])
