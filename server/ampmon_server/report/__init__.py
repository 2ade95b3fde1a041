"""A run as one file that opens offline: its verdict, findings, numbers, charts, skips, configuration."""

from __future__ import annotations

from ampmon_server.report.page import page
from ampmon_server.report.told import SKIPS, Told, tell


__all__ = ["SKIPS", "Told", "page", "tell"]
