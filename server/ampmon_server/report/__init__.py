"""A run as one file that opens offline: its verdict, findings, numbers, charts, skips and configuration."""

from __future__ import annotations

from ampmon_server.report.data import SKIPS, ReportData, gather
from ampmon_server.report.page import page


__all__ = ["SKIPS", "ReportData", "gather", "page"]
