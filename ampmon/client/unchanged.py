"""`auto`: watches every scaler that a process creates. It does from code what `ampmon run` does."""

from __future__ import annotations

import sys

from ampmon.training import built


def auto() -> None:
    """Watch every GradScaler that this process creates from now on, in any library.

    Use it where `ampmon run` cannot be used: in notebooks, in Ray workers, and with a Python started with ``-I`` or
    ``-S``. A second call does nothing. Imports no torch. Never raises, writes or syncs.
    """
    if "torch" in sys.modules:
        built.see_modules()
    built.startup().install()
