"""The sender: one process per machine and data directory that sends spools to servers. Never loads torch.

A training process calls `ensure_running`, and otherwise only reads the files that the sender writes.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

from ampmon.sender.adoption import orphans
from ampmon.sender.launch import ensure_running
from ampmon.sender.statusfile import DestinationStatus, SenderStatus, status
from ampmon.sender.wait import wait_until_sent


if TYPE_CHECKING:
    from ampmon.sender.draining import DrainReport, drain


__all__ = [
    "DestinationStatus",
    "DrainReport",
    "SenderStatus",
    "drain",
    "ensure_running",
    "orphans",
    "status",
    "wait_until_sent",
]

# A training process may not have set up logging. Nothing from here goes to its stderr.
logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    # Imported on first use: it loads the HTTP client, which a training process does not need.
    if name in {"DrainReport", "drain"}:
        module = importlib.import_module("ampmon.sender.draining")
        return getattr(module, name)
    raise AttributeError(f"module 'ampmon.sender' has no attribute {name!r}")
