"""`auto`: watches whatever scalers a process makes, as `ampmon run` does, from code."""

from __future__ import annotations

import sys

from ampmon import built


def auto() -> None:
    """Watch every GradScaler that this process makes from now on, whichever library makes it.

    What `ampmon run` does for a script, for places where it cannot be used: notebooks, Ray's workers, and a Python
    started with ``-I`` or ``-S``. A second call does nothing. Imports no torch. Never raises, writes nothing, and syncs
    nothing.
    """
    if "torch" in sys.modules:
        built.see_modules()
    built.startup().install()
