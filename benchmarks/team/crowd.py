"""A process of many clients, each a training that sends what has just happened every few seconds.

Says `sending` when all have begun; ends when its input does, and says how many records were taken, how often a client
was told to come later, and how many clients had failed.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Sequence
from uuid import uuid4

import msgspec

from ampmon import wire
from ampmon.errors import AmpmonError, Unreachable
from ampmon.transport import HttpTransport
from benchmarks.store import load


EVERY_S = 2.0
UPDATES = 40
"""In a batch: 20 a second."""


class _Training:
    """One client. What it sends was encoded before, and is that of all others but for the run that it is of."""

    def __init__(self, url: str, token: str, records: Sequence[msgspec.Raw]) -> None:
        self._transport = HttpTransport(url, token=token)
        self._records = records
        self._run_id, self._attempt_id = uuid4(), uuid4()
        headers = load.headers_of(self._run_id, self._attempt_id, load.PARAMETERS)
        self._headers = tuple(msgspec.Raw(wire.encode(each)) for each in headers)
        self.taken = self.told_to_wait = 0
        self.failed = False

    def send(self, end: threading.Event) -> None:
        """Send every few seconds until the end. Blocks."""
        try:
            due = time.monotonic() + EVERY_S * random.random()
            for first in range(0, len(self._records), UPDATES):
                if end.wait(max(due - time.monotonic(), 0)):
                    return
                due += EVERY_S
                self._deliver(first, end)
        except AmpmonError:
            self.failed = True
            raise

    def _deliver(self, first: int, end: threading.Event) -> None:
        batch = wire.encode(
            wire.RawBatch(
                schema_version=wire.SCHEMA_VERSION,
                run_id=self._run_id,
                attempt_id=self._attempt_id,
                headers=() if first else self._headers,
                records=tuple(self._records[first : first + UPDATES]),
            )
        )
        while not end.is_set():
            try:
                self._transport.send(batch, UPDATES)
            except Unreachable as told:
                self.told_to_wait += 1
                end.wait(told.retry_after_s or 1.0)
            else:
                self.taken += UPDATES
                return


def _main(url: str, token: str, clients: int, seconds: float) -> None:
    batches = int(seconds / EVERY_S) + 2
    records = [msgspec.Raw(wire.encode(each)) for each in load.updates_of(batches * UPDATES)]
    trainings = [_Training(url, token, records) for _ in range(clients)]
    end = threading.Event()
    threads = [threading.Thread(target=each.send, args=(end,)) for each in trainings]
    for thread in threads:
        thread.start()
    print("sending", flush=True)
    sys.stdin.read()
    end.set()
    for thread in threads:
        thread.join()
    taken, waited = (
        sum(getattr(each, name) for each in trainings) for name in ("taken", "told_to_wait")
    )
    print(taken, waited, sum(each.failed for each in trainings), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
