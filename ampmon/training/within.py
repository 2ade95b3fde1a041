"""Finds the calling training framework by the modules on the stack. Imports none."""

from __future__ import annotations

import sys


_FRAMEWORKS = (
    ("transformers.trainer", "transformers.Trainer"),
    ("lightning.pytorch", "lightning.Trainer"),
    ("pytorch_lightning", "lightning.Trainer"),
    ("lightning.fabric", "lightning.Fabric"),
    ("lightning_fabric", "lightning.Fabric"),
    ("accelerate", "accelerate.Accelerator"),
)
"""Modules, each with the class that holds the settings. Earlier ones may call later ones."""
_FRAMES_MAX = 500


def framework() -> str:
    """Return the framework on the stack, such as "transformers.Trainer", or "". Reads only module names."""
    modules = set()
    frame = sys._getframe()
    for _ in range(_FRAMES_MAX):
        modules.add(str(frame.f_globals.get("__name__", "")))
        if frame.f_back is None:
            break
        frame = frame.f_back
    for prefix, name in _FRAMEWORKS:
        if any(each == prefix or each.startswith(f"{prefix}.") for each in modules):
            return name
    return ""
