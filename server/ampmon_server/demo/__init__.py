"""`ampmon demo`: a real fp16 training, small enough for any machine, with the page that shows it.

Importing this module does not load torch. Running the demo does.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys

from ampmon.system.installing import install


def main(arguments: argparse.Namespace) -> int:
    """Run the demo until it is done or interrupted. Return the exit code."""
    if importlib.util.find_spec("torch") is None:
        print(
            f"ampmon demo trains a model, which needs PyTorch: {install('torch')}",
            file=sys.stderr,
        )
        return 1
    from ampmon_server.demo.interrupt import Interrupt

    # Before torch is loaded: that takes seconds, in which the user may press Ctrl-C.
    with Interrupt() as interrupt:
        from ampmon_server.demo import session

        return session.run(arguments, interrupt)
