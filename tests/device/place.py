"""The device that device tests train on: the CPU, or what TEST_DEVICE names.

The emulated device is loaded here, in a process that test_device.py starts for it. `make gpu` names "cuda".
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TypeAlias

import pytest

from device import emulated, real


PLACE = os.environ.get("TEST_DEVICE", "cpu")
EMULATED = PLACE == emulated.NAME
Device: TypeAlias = emulated.Device | real.Device

if EMULATED:
    emulated.device()


def device() -> Device:
    """Return the controls of the device."""
    return real.device() if PLACE == real.NAME else emulated.device()


@pytest.fixture(name="emulated")
def at_rest() -> Iterator[Device]:
    """The device, running freely, with no wait counted."""
    device().reset()
    yield device()
    device().reset()
