"""Analyses a run: diagnosis, replays under other policies, and other scales. Pure."""
