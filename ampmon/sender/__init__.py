"""The sender: one process per machine and data directory that sends spools to servers. Never loads torch.

A training process calls `ensure_running`, and otherwise only reads the files that the sender writes.
"""

from __future__ import annotations

import logging

from ampmon.sender.adoption import orphans
from ampmon.sender.launch import ensure_running, wait_until_sent
from ampmon.sender.statusfile import DestinationStatus, SenderStatus, status


__all__ = [
    "DestinationStatus",
    "SenderStatus",
    "ensure_running",
    "orphans",
    "status",
    "wait_until_sent",
]

# A training process may not have set up logging. Nothing from here goes to its stderr.
logging.getLogger(__name__).addHandler(logging.NullHandler())
