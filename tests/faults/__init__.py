"""A fault matrix in SQLite's manner: each call of each part fails once in each way, and nothing is lost or doubled.

PYTHONPATH=tests:. python -m faults          # some positions of every operation and fault, as in the test suite
PYTHONPATH=tests:. python -m faults --all    # every position; goes on where it was interrupted
"""
