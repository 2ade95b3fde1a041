"""The exit code of commands that cannot do what they are asked."""

CANNOT = 2
"""A line on stderr says why. It is argparse's own code too."""
