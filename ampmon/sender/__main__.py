"""`python -m ampmon.sender DIR`: election, logging and signals of the sender's process."""

from __future__ import annotations

import argparse
import logging
import logging.handlers
import os
import queue
import signal
import sys
import threading
from pathlib import Path

from ampmon.sender import election
from ampmon.sender.election import SenderLock


_LOG_BYTES_MAX = 2**18
_NICENESS = 10


def main(arguments: list[str]) -> int:
    """Run the sender of a data directory until nothing is left to do. End at once if one already runs."""
    parser = argparse.ArgumentParser(
        prog="python -m ampmon.sender",
        description="Send the records in the spools of a data directory.",
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument(
        "--detach", action="store_true", help="return at once and go on in the background"
    )
    options = parser.parse_args(arguments)
    if options.detach and hasattr(os, "fork") and os.fork():
        # The caller waits for this process and has no other child, so no launcher takes the sender for a worker of its
        # own.
        os._exit(0)
    return _serve(options.directory.absolute())


def _serve(directory: Path) -> int:
    office = election.elect(directory)
    if office is None:
        return 0
    os.umask(0o077)
    if hasattr(os, "nice"):
        os.nice(_NICENESS)
    stop = _stop_on_signals()
    _log_to(election.home(directory) / "log")
    try:
        _send(directory, stop, office)
    finally:
        office.resign()
    return 0


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()
    # A handler that runs while this thread holds the event's lock would deadlock. A SimpleQueue is reentrant, so the
    # handler puts, and another thread sets the event.
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    for name in ("SIGTERM", "SIGINT"):
        signal.signal(getattr(signal, name), lambda number, _: signals.put(number))

    def wait() -> None:
        signals.get()
        stop.set()

    threading.Thread(target=wait, name="ampmon signals", daemon=True).start()
    return stop


def _send(directory: Path, stop: threading.Event, office: SenderLock) -> None:
    from ampmon.sender.loop import Loop, http_transports

    log = logging.getLogger("ampmon.sender")
    log.info("sender %d begins", os.getpid())
    try:
        Loop(directory, http_transports(directory)).run(stop, office.is_held)
    except Exception:
        log.exception("the sender failed")
        raise
    log.info("sender %d ends", os.getpid())


def _log_to(path: Path) -> None:
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=_LOG_BYTES_MAX, backupCount=1)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log = logging.getLogger("ampmon.sender")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
