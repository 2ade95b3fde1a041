"""Asks for what is known of a run: a server that was named or that runs, else one of its own on the data directory."""

from __future__ import annotations

from ampmon_server.asking.choosing import LATEST, choose
from ampmon_server.asking.client import Asking, Refused, Unanswered
from ampmon_server.asking.place import answering


__all__ = ["LATEST", "Asking", "Refused", "Unanswered", "answering", "choose"]
