"""Replays of runs under other policies, checked against real scalers and trainings."""
