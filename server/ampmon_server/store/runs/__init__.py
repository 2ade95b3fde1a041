"""Reads and changes runs: their rows, the list of runs, events, and the data for judging a run."""
