"""Asks for what is known of a run: a server that was named or that runs, else one of its own on the data directory."""

from __future__ import annotations

from ampmon_server.client.choosing import LATEST, choose
from ampmon_server.client.client import Asking, RequestRefused, Unanswered
from ampmon_server.client.resolve_server import answering


__all__ = ["LATEST", "Asking", "RequestRefused", "Unanswered", "answering", "choose"]
