"""Replays a recorded run under other policies for the scale. Pure: a history in, a simulation out."""

from __future__ import annotations

from ampmon_server.analysis.policy.advice import Advice, advise, has_no_gain, sentence
from ampmon_server.analysis.policy.history import UPDATES_MAX, History
from ampmon_server.analysis.policy.recommended import Recommended
from ampmon_server.analysis.policy.settings import BOUNDS, KINDS, Kind, Setting, changed
from ampmon_server.analysis.policy.simulate import Path, Simulation, Simulator


__all__ = [
    "BOUNDS",
    "KINDS",
    "UPDATES_MAX",
    "Advice",
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
