"""A process of many clients, each a training that sends its latest updates every few seconds.

It prints `sending` when all have started, and ends when its input does. Then it prints in JSON how many records were
acknowledged, how often a client had to retry later, how many clients failed, and how long batches took from the
first try until they were acknowledged.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from uuid import uuid4

import msgspec
import numpy as np

from ampmon import wire
from ampmon.errors import AmpmonError, Unreachable
from ampmon.transport import HttpTransport
from benchmarks.processes import Worker, working
from benchmarks.store import load


class _Training:
    """One client. Its records are encoded in advance and shared by all clients, which differ in the run."""

    def __init__(
        self, url: str, token: str, records: Sequence[msgspec.Raw], every_s: float, size: int
    ) -> None:
        self._transport = HttpTransport(url, token=token)
        self._records, self._every_s, self._size = records, every_s, size
        self._run_id, self._attempt_id = uuid4(), uuid4()
        headers = load.headers_of(self._run_id, self._attempt_id, load.PARAMETERS)
        self._headers = tuple(msgspec.Raw(wire.encode(each)) for each in headers)
        self.taken = self.told_to_wait = 0
        self.seconds: list[float] = []
        self.failed = False

    def send(self, end: threading.Event) -> None:
        """Send at its pace until ``end`` is set, or at once when it is behind. Blocks."""
        try:
            due = time.monotonic() + self._every_s * random.random()
            for first in range(0, len(self._records), self._size):
                if end.wait(max(due - time.monotonic(), 0)):
                    return
                due += self._every_s
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
                records=tuple(self._records[first : first + self._size]),
            )
        )
        began = time.perf_counter()
        while not end.is_set():
            try:
                self._transport.send(batch)
            except Unreachable as error:
                self.told_to_wait += 1
                end.wait(error.retry_after_s or 1.0)
            else:
                self.taken += self._size
                self.seconds.append(time.perf_counter() - began)
                return


def sending(
    url: str, token: str, clients: int, seconds: float, every_s: float, updates: int
) -> AbstractContextManager[Worker]:
    """Run such a process. Each client sends ``updates`` every ``every_s`` seconds, for at least ``seconds``."""
    return working(__name__, url, token, clients, seconds, every_s, updates)


def _main(url: str, token: str, clients: int, seconds: float, every_s: float, updates: int) -> None:
    batches = int(seconds / every_s) + 2
    records = [msgspec.Raw(wire.encode(each)) for each in load.updates_of(batches * updates)]
    trainings = [_Training(url, token, records, every_s, updates) for _ in range(clients)]
    end = threading.Event()
    threads = [threading.Thread(target=each.send, args=(end,)) for each in trainings]
    for thread in threads:
        thread.start()
    print("sending", flush=True)
    sys.stdin.read()
    end.set()
    for thread in threads:
        thread.join()
    took = [each for training in trainings for each in training.seconds]
    p50, p99 = np.percentile(took or [np.inf], [50, 99])
    counted = {
        "taken": sum(each.taken for each in trainings),
        "told_to_wait": sum(each.told_to_wait for each in trainings),
        "failed": sum(each.failed for each in trainings),
        "p50_s": p50,
        "p99_s": p99,
    }
    print(json.dumps(counted), flush=True)


if __name__ == "__main__":
    _, address, secret, clients, seconds, every_s, updates = sys.argv
    _main(address, secret, int(clients), float(seconds), float(every_s), int(updates))
