"""Queries a server about runs: a named one, a running one, or an embedded one started on the data directory."""

from __future__ import annotations

from ampmon_server.client.choosing import LATEST, choose
from ampmon_server.client.client import ApiClient, ClientError, RequestRefused
from ampmon_server.client.resolve_server import answering


__all__ = ["LATEST", "ApiClient", "ClientError", "RequestRefused", "answering", "choose"]
