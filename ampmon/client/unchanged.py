"""`auto`: watches whatever scalers a process makes, as `ampmon run` does, from code."""

from __future__ import annotations

import sys

from ampmon.training import built


def auto() -> None:
    """Watch every GradScaler that this process creates from now on, in any library.

    It does what `ampmon run` does, where that cannot be used: in notebooks, Ray workers, and a Python started with
    ``-I`` or ``-S``. A second call does nothing. Imports no torch. Never raises, writes or syncs.
    """
    if "torch" in sys.modules:
        built.see_modules()
    built.startup().install()
