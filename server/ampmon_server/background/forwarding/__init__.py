"""Copies runs to other trackers as their records are stored: TensorBoard event files and MLflow."""

from __future__ import annotations

from ampmon_server.background.forwarding.destinations import BadDestination, opened
from ampmon_server.background.forwarding.forwarder import Forwarder


__all__ = ["BadDestination", "Forwarder", "opened"]
