"""Frameworks have their own environment, so only `make test-frameworks` collects these tests."""

from __future__ import annotations

import os


collect_ignore_glob = [] if "FRAMEWORKS_PYTHON" in os.environ else ["test_*.py"]
