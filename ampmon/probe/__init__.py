"""The device side of the monitor: reads gradients, on the device they are on, and never waits for it."""
