"""Trains under other scaling policies, and compares with what the simulator and the estimates say."""
