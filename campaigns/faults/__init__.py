"""A fault matrix like SQLite's: each call of each part fails in each way, and nothing is lost or doubled.

A *cell* is one run in which one call of one operation fails in one way: once, several times in a row, or for good.
A cell is wrong if

- the training result differs, even in one bit, or training waits in more than one update;
- an acknowledged record is not stored, a record is stored twice or is false, or one is missing and not counted;
- derived rows do not match their source rows, or a file does not reopen.

`python -m campaigns.faults` runs one position of every operation and fault. `make faults` runs all positions and
continues where it was interrupted.
"""
