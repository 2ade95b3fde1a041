"""``python -m ampmon_server.cli``: the same as ``ampmon``."""

from __future__ import annotations

import sys

from ampmon_server.cli import main


sys.exit(main())
