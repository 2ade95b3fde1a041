"""What is asked over HTTP, and the shapes of the answers."""

from __future__ import annotations
