"""Frameworks live in an environment of their own: without it, none of these tests is there."""

from __future__ import annotations

from frameworks import PYTHON


collect_ignore_glob = [] if PYTHON.is_file() else ["test_*.py"]
