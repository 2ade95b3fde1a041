"""Which training framework calls, by the modules on the stack. Imports none of them."""

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
"""Modules, and the class that holds the settings. A later one may be called by an earlier one."""
_FRAMES_MAX = 500


def framework() -> str:
    """The framework whose code is on the stack, such as "transformers.Trainer", or "". Looks at names of modules."""
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
