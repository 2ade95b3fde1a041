"""A fault matrix in SQLite's manner: each call of each part fails in each way, and nothing is lost or doubled.

A cell is a run in which one call of one operation fails in one way, once, some times in a row or for good; `calls` is
how often the operation is called. Wrong is a cell after which training came out otherwise by a bit, or waited in more
than one update; something acknowledged is not stored, something is stored twice or is false, or something is missing
and not told; what is derived is not what rows make; or a file does not reopen. `python -m faults` runs some positions
of every operation and fault; `make faults` runs all, and goes on where it was interrupted.
"""
