"""The emulated device and training on it, in a process of its own, in which torch has the device."""

from __future__ import annotations

import pytest

from device import emulated
from older_torch import EMULATES
from suites import passes


SUITES = (
    "device/device_suite.py",
    "device/training_suite.py",
    "device/faults_suite.py",
    "device/streams_suite.py",
    "device/waits_suite.py",
    "device/layouts_suite.py",
    "device/recipes_suite.py",
    "device/triton_suite.py",
    "scaler/test_cuda.py",
    "scaler/test_gear.py",
    "scaler/test_losses.py",
)


@EMULATES
@pytest.mark.skipif(emulated.COMPILER is None, reason="without g++ there is no emulated device")
def test_the_suites_on_the_emulated_device() -> None:
    """All suites pass on a device that works asynchronously."""
    emulated.build()
    assert passes(*SUITES, TEST_DEVICE=emulated.NAME, TRITON_INTERPRET="1") >= 160
