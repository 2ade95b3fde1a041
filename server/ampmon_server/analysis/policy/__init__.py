"""Replays a recorded run under other policies for the scale. Pure: a history in, a simulation out."""
