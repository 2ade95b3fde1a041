"""The device that tests of devices train on: the CPU, or what TEST_DEVICE names.

The emulated one is loaded here, by a process that was started for it: see test_device.py. `make gpu` names "cuda".
"""

from __future__ import annotations

import os
from typing import TypeAlias

from device import emulated, real


PLACE = os.environ.get("TEST_DEVICE", "cpu")
EMULATED = PLACE == emulated.NAME
Device: TypeAlias = emulated.Device | real.Device

if EMULATED:
    emulated.device()


def device() -> Device:
    """What controls it."""
    return real.device() if PLACE == real.NAME else emulated.device()
