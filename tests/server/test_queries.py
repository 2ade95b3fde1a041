"""HTTP queries and the shapes of their answers."""

from __future__ import annotations
