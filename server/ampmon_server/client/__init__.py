"""Queries a server about runs: a named one, the one running on the data directory, or else an embedded one."""

from __future__ import annotations

from ampmon_server.client.answers import LATEST, choose
from ampmon_server.client.client import ApiClient, ClientError, RequestRefused


__all__ = ["LATEST", "ApiClient", "ClientError", "RequestRefused", "choose"]
