"""`auto`: watches whatever scalers a process makes, as `ampmon run` does, from code."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


STARTUP = Path(__file__).with_name("startup")
"""The folder that `ampmon run` puts on PYTHONPATH."""


def auto() -> None:
    """Watch every GradScaler that this process makes from now on, whichever library makes it.

    What `ampmon run` does for a script, for places where it cannot be used: notebooks, Ray's workers, and a Python
    started with ``-I`` or ``-S``. Call it before the model is built, so that its parameters have names. A second call
    does nothing. Imports no torch. Never raises, writes nothing, and syncs nothing.
    """
    _startup().install()


def _startup() -> ModuleType:
    """The one module of that name, which is not on the path of imports."""
    name = "ampmon_startup"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, STARTUP / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]
