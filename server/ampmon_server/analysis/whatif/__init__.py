"""Estimates from samples what other scales and formats would do, and which zeros fp16 flushed."""

from __future__ import annotations

from ampmon_server.analysis.whatif.errors import DOWN, UP, Error, widened
from ampmon_server.analysis.whatif.flushed import Flushed, flushed, flushed_in, usable
from ampmon_server.analysis.whatif.scales import (
    FORMATS,
    LEVELS,
    SAMPLES,
    Best,
    Curve,
    Gradient,
    best,
    curve,
    levels,
    of_parameter,
    of_samples,
    room,
)


__all__ = [
    "DOWN",
    "FORMATS",
    "LEVELS",
    "SAMPLES",
    "UP",
    "Best",
    "Curve",
    "Error",
    "Flushed",
    "Gradient",
    "best",
    "curve",
    "flushed",
    "flushed_in",
    "levels",
    "of_parameter",
    "of_samples",
    "room",
    "usable",
    "widened",
]
