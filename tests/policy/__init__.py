"""Replays of runs under other policies, held to real scalers and to real trainings."""
