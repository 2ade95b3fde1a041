"""Runs: their rows, the list of them, and what they are judged by."""
