"""Trains under other scaling policies, and compares the results with the simulator and the estimates."""
