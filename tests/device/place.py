"""The device that tests of devices train on: the CPU, or what TEST_DEVICE names.

The emulated one is loaded here, by a process that was started for it: see test_device.py.
"""

from __future__ import annotations

import os

from device import emulated


PLACE = os.environ.get("TEST_DEVICE", "cpu")

if PLACE == emulated.NAME:
    emulated.device()
