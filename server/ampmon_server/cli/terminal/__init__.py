"""Runs in a terminal: the list, one run, a live view, and what a user may change of them."""
