"""A fault matrix in SQLite's manner: each call of each part fails in each way, and nothing is lost or doubled.

A *cell* is one run in which one call of one operation fails in one way: once, several times in a row, or for good.
A cell is wrong if

- training gave another result, by as little as one bit, or waited in more than one update;
- an acknowledged record is not stored, a record is stored twice or is false, or one is missing and not counted;
- derived rows differ from what the rows make, or a file does not reopen.

`python -m campaigns.faults` runs one position of every operation and fault. `make faults` runs all positions and
continues where it was interrupted.
"""
