"""Replays a recorded run under other policies for the scale. Pure: a history in, a simulation out."""

from __future__ import annotations

from ampmon_server.analysis.policy.advice import Recommended, advise, has_no_gain, sentence
from ampmon_server.analysis.policy.history import UPDATES_MAX, History
from ampmon_server.analysis.policy.scalers import BOUNDS, KINDS, Kind, Setting, changed
from ampmon_server.analysis.policy.simulate import Path, Simulation, Simulator


__all__ = [
    "BOUNDS",
    "KINDS",
    "UPDATES_MAX",
    "History",
    "Kind",
    "Path",
    "Recommended",
    "Setting",
    "Simulation",
    "Simulator",
    "advise",
    "changed",
    "has_no_gain",
    "sentence",
]
