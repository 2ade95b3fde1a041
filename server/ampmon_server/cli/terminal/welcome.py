"""The text that ``ampmon`` prints without a command, for new users, and the version."""

from __future__ import annotations


WELCOME = """\
ampmon shows what mixed-precision training does to your gradients: the loss
scale, skipped steps and underflow, live.

  ampmon demo             train a small model in fp16 and watch it in a browser
  ampmon run train.py     run your training, unchanged, and watch it
  ampmon show             the newest run: its numbers, and what to change

All commands: ampmon --help
"""


def version() -> str:
    """Return the version: "ampmon 0.1.0"."""
    from ampmon import __version__

    return f"ampmon {__version__}"
