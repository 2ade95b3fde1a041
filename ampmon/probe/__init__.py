"""The device side of the monitor: measures gradients on the device that holds them and never waits for it."""
