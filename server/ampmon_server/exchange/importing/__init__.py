"""Import of runs that other tools recorded: text logs, read into the updates that an ampmon run would have."""

from __future__ import annotations

from ampmon_server.exchange.importing.logs import FRAMEWORKS, NoScale, read_log
from ampmon_server.exchange.importing.reconstructing import TooLong
from ampmon_server.exchange.importing.sending import log_batches, name_of, send


__all__ = ["FRAMEWORKS", "NoScale", "TooLong", "log_batches", "name_of", "read_log", "send"]
